#include "file_access.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>

#include "cartan/core/error.hpp"
#include "cartan/core/text.hpp"

namespace cartan::store {

void DescriptorTraits::destroy(Raw fd) noexcept { ::close(fd); }

Descriptor open_for_reading(const std::filesystem::path& path) {
  // O_NONBLOCK: to open a pipe without a writer would otherwise wait for one.
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd && errno == ENOENT) throw MissingError("{}: no such file", path.string());
  if (!fd) throw IoError("cannot open {}: {}", path.string(), errno_text(errno));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw IoError("cannot read {}: {}", path.string(), errno_text(errno));
  if (S_ISDIR(info.st_mode)) throw DataError("{}: a folder, not a checkpoint", path.string());
  if (!S_ISREG(info.st_mode)) throw DataError("{}: not a regular file", path.string());
  return fd;
}

std::uint64_t file_size(int fd, const std::filesystem::path& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw IoError("cannot read {}: {}", path.string(), errno_text(errno));
  return static_cast<std::uint64_t>(info.st_size);
}

void read_at(int fd, const std::filesystem::path& path, std::uint64_t position, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = ::pread(fd, out.data(), out.size(), static_cast<off_t>(position));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw IoError("cannot read {}: {}", path.string(), errno_text(errno));
    if (got == 0) throw DataError("{}: truncated: ends at byte {}", path.string(), position);
    out = out.subspan(static_cast<std::size_t>(got));
    position += static_cast<std::uint64_t>(got);
  }
}

void write_at(int fd, const std::filesystem::path& path, std::uint64_t position,
              std::span<const std::byte> in) {
  while (!in.empty()) {
    const ssize_t written = ::pwrite(fd, in.data(), in.size(), static_cast<off_t>(position));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw IoError("cannot write {}: {}", path.string(), errno_text(errno));
    in = in.subspan(static_cast<std::size_t>(written));
    position += static_cast<std::uint64_t>(written);
  }
}

void sync_file(int fd, const std::filesystem::path& path) {
  if (::fsync(fd) != 0) throw IoError("cannot sync {}: {}", path.string(), errno_text(errno));
}

bool has_space(int fd, std::uint64_t bytes) {
  struct statvfs disk {};
  if (::fstatvfs(fd, &disk) != 0 || disk.f_blocks == 0) return true;
  const std::uint64_t blocks = ::geteuid() == 0 ? disk.f_bfree : disk.f_bavail;
  if (blocks >= bytes / disk.f_frsize + 1) return true;
  errno = ENOSPC;
  return false;
}

void set_size(int fd, const std::filesystem::path& path, std::uint64_t bytes) {
  if (!has_space(fd, bytes) || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0)
    throw IoError("cannot write {} ({}): {}", path.string(), format_bytes(bytes), errno_text(errno));
}

}  // namespace cartan::store
