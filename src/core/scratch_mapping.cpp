#include "cartan/core/scratch_mapping.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "cartan/core/error.hpp"

namespace cartan {
namespace {

/// A file that has no name, or loses it at once where the file system knows only named ones.
int open_nameless(const std::filesystem::path& directory) {
  const int fd = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
  std::string name = (directory / "cartan-offload-XXXXXX").string();
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

void* map_scratch(const std::filesystem::path& directory, std::size_t size_bytes) {
  const auto fail = [&](int code) {
    throw IoError("cannot keep {} bytes in a file of {}: {}", size_bytes, directory.string(),
                  errno_text(code));
  };
  const int fd = open_nameless(directory);
  if (fd < 0) fail(errno);
  // Allocated now: a full disk would later be a signal in the middle of a step.
  if (const int code = ::posix_fallocate(fd, 0, static_cast<off_t>(size_bytes)); code != 0) {
    ::close(fd);
    fail(code);
  }
  void* const data = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int code = errno;
  ::close(fd);
  if (data == MAP_FAILED) fail(code);
  return data;
}

void unmap_scratch(void* data, std::size_t size_bytes) noexcept { ::munmap(data, size_bytes); }

}  // namespace cartan
