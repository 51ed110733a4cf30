// POSIX files behind small owners.
#include "cartan/core/file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "cartan/core/error.hpp"

namespace cartan {
namespace {

class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags, mode_t mode = 0666)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {
    if (fd_ >= 0) return;
    if (errno == ENOENT && (flags & O_CREAT) == 0) throw MissingError("{}: no such file", path.string());
    throw IoError("cannot open {}: {}", path.string(), errno_text(errno));
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(fd_); }
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void sync_directory(const std::filesystem::path& directory) {
  const Descriptor fd(directory, O_RDONLY | O_DIRECTORY);
  if (::fsync(fd.get()) != 0)
    throw IoError("cannot sync directory {}: {}", directory.string(), errno_text(errno));
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::path temporary = path;
  temporary += fmt::format(".tmp{}", ::getpid());
  try {
    const Descriptor fd(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    for (std::string_view rest = content; !rest.empty();) {
      const ssize_t written = ::write(fd.get(), rest.data(), rest.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw IoError("cannot write {}: {}", path.string(), errno_text(errno));
      rest.remove_prefix(static_cast<std::size_t>(written));
    }
    if (::fsync(fd.get()) != 0) throw IoError("cannot sync {}: {}", path.string(), errno_text(errno));
    if (::rename(temporary.c_str(), path.c_str()) != 0)
      throw IoError("cannot rename {} to {}: {}", temporary.string(), path.string(), errno_text(errno));
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  const std::filesystem::path directory = path.parent_path();
  sync_directory(directory.empty() ? "." : directory);
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor fd(path, O_RDONLY);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw IoError("cannot read {}: {}", path.string(), errno_text(errno));
  if (!S_ISREG(info.st_mode)) throw IoError("cannot read {}: not a regular file", path.string());
  size_ = static_cast<std::size_t>(info.st_size);
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) throw IoError("cannot map {}: {}", path.string(), errno_text(errno));
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  MappedFile taken(std::move(other));
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace cartan
