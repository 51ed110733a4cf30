#include "nccl_segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <string>

#include "memory.hpp"

namespace emu::nccl {
namespace {

void* map_file(const FileAddress& address, std::size_t bytes, int protection) {
  const std::string path = "/proc/" + std::to_string(address.pid) + "/fd/" + std::to_string(address.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* const memory = mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, fd, 0);
  close(fd);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

FileAddress make_segment() {
  const int fd = memfd_create("emu-nccl", MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, sizeof(Segment)) != 0) return {getpid(), -1};
  return {getpid(), fd};
}

Segment* map_segment(const FileAddress& address) {
  return static_cast<Segment*>(map_file(address, sizeof(Segment), PROT_READ | PROT_WRITE));
}

void unmap_segment(Segment* segment) { munmap(segment, sizeof(Segment)); }

unsigned char* map_heap(const FileAddress& address) {
  return static_cast<unsigned char*>(
      map_file(address, static_cast<std::size_t>(heap.hi - heap.lo), PROT_READ));
}

}  // namespace emu::nccl
