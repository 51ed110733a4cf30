// A buffer, a descriptor and a temporary name.
#include "output_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "cartan/core/error.hpp"

namespace cartan::data {
namespace {
constexpr std::size_t kBufferBytes = std::size_t{1} << 20;
}

OutputFile::OutputFile(std::string path)
    : path_(std::move(path)), temporary_(fmt::format("{}.tmp{}", path_, ::getpid())) {
  buffer_.reserve(kBufferBytes);
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ >= 0) return;
  const bool no_folder = errno == ENOENT;
  throw IoError("cannot create {}: {}{}", path_, errno_text(errno),
                no_folder ? "; create its folder first" : "");
}

OutputFile::~OutputFile() {
  ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), kBufferBytes - buffer_.size());
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
    bytes = bytes.subspan(count);
    if (buffer_.size() == kBufferBytes) flush();
  }
}

void OutputFile::flush() {
  for (std::span<const std::byte> rest = buffer_; !rest.empty();) {
    const ssize_t written = ::write(fd_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw IoError("cannot write {}: {}", path_, errno_text(errno));
    rest = rest.subspan(static_cast<std::size_t>(written));
    flushed_ += written;
  }
  buffer_.clear();
}

void OutputFile::truncate(Index size) {
  CARTAN_ASSERT(size >= 0 && size <= flushed_ + static_cast<Index>(buffer_.size()));
  if (size >= flushed_) {
    buffer_.resize(static_cast<std::size_t>(size - flushed_));
    return;
  }
  buffer_.clear();
  if (::ftruncate(fd_, size) != 0 || ::lseek(fd_, size, SEEK_SET) != size)
    throw IoError("cannot shorten {}: {}", path_, errno_text(errno));
  flushed_ = size;
}

void OutputFile::sync() {
  flush();
  if (::fsync(fd_) != 0) throw IoError("cannot sync {}: {}", path_, errno_text(errno));
}

void OutputFile::rename() {
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    throw IoError("cannot rename {} to {}: {}", temporary_, path_, errno_text(errno));
  temporary_.clear();
}

}  // namespace cartan::data
