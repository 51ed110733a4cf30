#include "memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>

#include "errors.hpp"
#include "runtime.h"
#include "shadow_memory.hpp"

namespace emu {

HeapRange heap{};
int heap_fd = -1;

namespace {

constexpr std::size_t kGranule = 256;
/// Between allocations, so that an access beyond one does not hit the next.
constexpr std::size_t kGap = 256;
/// Fresh memory reads as NaN. Larger allocations read as zero instead: filling them would cost more than a
/// test.
constexpr std::size_t kFilled = std::size_t{1} << 20;
/// Memory that is given back to the machine when it is freed.
constexpr std::size_t kReturned = std::size_t{64} << 10;
constexpr std::size_t kPage = 4096;

constexpr std::size_t kDeviceRoom = std::size_t{16} << 30, kPinnedRoom = std::size_t{8} << 30;

std::size_t rounded(std::size_t bytes) {
  return (std::max<std::size_t>(bytes, 1) + kGranule - 1) / kGranule * kGranule;
}

/// Allocations in a part of the heap. A freed piece is used again for the same size only: a stale pointer
/// then does not hit a neighbour.
class Region {
 public:
  void place(unsigned char* begin, std::size_t bytes) {
    top_ = begin + kGap;
    end_ = begin + bytes;
  }

  /// Null if the region is full.
  unsigned char* allocate(std::size_t bytes) {
    const std::size_t size = rounded(bytes);
    unsigned char* data = nullptr;
    const auto found = free_.find(size);
    if (found != free_.end()) {
      data = found->second;
      free_.erase(found);
    } else {
      if (size + kGap > static_cast<std::size_t>(end_ - top_)) return nullptr;
      data = top_;
      top_ += size + kGap;
    }
    allocated_[data] = bytes;
    if (bytes <= kFilled) std::memset(data, 0xff, bytes);
    return data;
  }

  /// The allocation ends for the program. The bytes that it had, or nothing if there is none.
  std::optional<std::size_t> retire(void* data) {
    const auto found = allocated_.find(static_cast<unsigned char*>(data));
    if (found == allocated_.end()) return std::nullopt;
    const std::size_t bytes = found->second;
    allocated_.erase(found);
    return bytes;
  }

  /// No operation uses a retired allocation any more.
  void reuse(void* data, std::size_t bytes) {
    free_.emplace(rounded(bytes), static_cast<unsigned char*>(data));
    give_back(static_cast<unsigned char*>(data), bytes);
  }

  bool holds(const void* p, std::size_t n) const {
    const auto* const address = static_cast<const unsigned char*>(p);
    auto found = allocated_.upper_bound(const_cast<unsigned char*>(address));
    if (found == allocated_.begin()) return false;
    --found;
    return address + n <= found->first + found->second && (n > 0 || address <= found->first + found->second);
  }

  std::vector<std::span<const unsigned char>> allocations() const {
    std::vector<std::span<const unsigned char>> all;
    for (const auto& [data, bytes] : allocated_) all.emplace_back(data, bytes);
    return all;
  }

 private:
  static void give_back(unsigned char* data, std::size_t bytes) {
    if (bytes < kReturned) return;
    const auto offset = static_cast<std::size_t>(data - heap.lo);
    const std::size_t first = (offset + kPage - 1) / kPage * kPage, end = (offset + bytes) / kPage * kPage;
    fallocate(heap_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
              static_cast<off_t>(end - first));
  }

  unsigned char *top_ = nullptr, *end_ = nullptr;
  std::map<unsigned char*, std::size_t> allocated_;
  std::multimap<std::size_t, unsigned char*> free_;
};

// Never destroyed: the progress thread may outlive main.
Region& device = *new Region;
Region& pinned = *new Region;
std::size_t in_use = 0, peak = 0;

cudaError_t allocate(void** data, std::size_t bytes) {
  const std::lock_guard lock(big_lock());
  init_heap();
  *data = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (in_use + bytes > config.device_bytes) return cudaErrorMemoryAllocation;
  *data = device.allocate(bytes);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  in_use += bytes;
  peak = std::max(peak, in_use);
  note_allocation(*data, bytes, false);
  return cudaSuccess;
}

/// Ends an allocation of device memory. In program order: what is in use does not depend on the schedule.
std::optional<std::size_t> retire(const char* call, void* data) {
  const std::lock_guard lock(big_lock());
  const std::optional<std::size_t> bytes = device.retire(data);
  if (bytes)
    in_use -= *bytes;
  else
    report(std::string(call) + " of a pointer that is not the beginning of an allocation");
  return bytes;
}

void reuse(Region& region, void* data, std::size_t bytes) {
  const std::lock_guard lock(big_lock());
  forget_allocation(data);
  region.reuse(data, bytes);
}

/// The order of an allocation among the operations of its stream. The checker gets to know of its first
/// bytes.
void order_in_stream(cudaStream_t stream, const char* name, void* data) {
  enqueue(stream, name, [data] {
    touch(data, 1, true);
    return Step::done;
  });
}

cudaError_t allocate_pinned(void** data, std::size_t bytes) {
  const std::lock_guard lock(big_lock());
  init_heap();
  *data = nullptr;
  if (bytes == 0) return cudaSuccess;
  *data = pinned.allocate(bytes);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  note_allocation(*data, bytes, true);
  return cudaSuccess;
}

}  // namespace

void init_heap() {
  if (heap.lo != nullptr) return;
  constexpr std::size_t kBytes = kDeviceRoom + kPinnedRoom;
  heap_fd = memfd_create("emu-heap", 0);
  void* const memory =
      heap_fd < 0 || ftruncate(heap_fd, static_cast<off_t>(kBytes)) != 0
          ? MAP_FAILED
          : mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, heap_fd, 0);
  if (memory == MAP_FAILED) {
    std::perror("emu: cannot reserve addresses for the device's memory");
    std::abort();
  }
  heap.lo = static_cast<unsigned char*>(memory);
  heap.hi = heap.lo + kBytes;
  device.place(heap.lo, kDeviceRoom);
  pinned.place(heap.lo + kDeviceRoom, kPinnedRoom);
}

bool is_device_address(const void* p) {
  return p >= heap.lo && p < heap.lo + kDeviceRoom && heap.lo != nullptr;
}
bool is_device_range(const void* p, std::size_t n) { return device.holds(p, n); }
bool is_pinned(const void* p) { return pinned.holds(p, 1); }
bool is_visible_to_device(const void* p, std::size_t n) { return device.holds(p, n) || pinned.holds(p, n); }

std::vector<std::span<const unsigned char>> device_allocations() { return device.allocations(); }
std::size_t device_bytes_in_use() { return in_use; }
std::size_t device_bytes_peak() { return peak; }
void reset_device_bytes_peak() { peak = in_use; }

}  // namespace emu

using emu::api, emu::Capturing;

extern "C" {

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  return api("cudaMalloc", cudaErrorMemoryAllocation, Capturing::refused,
             [&] { return emu::allocate(data, bytes); });
}

cudaError_t cudaFree(void* data) {
  return api("cudaFree", cudaErrorInvalidValue, Capturing::refused, [&] {
    if (data == nullptr) return cudaSuccess;
    emu::wait_for_device();
    const auto bytes = emu::retire("cudaFree", data);
    if (!bytes) return cudaErrorInvalidValue;
    emu::reuse(emu::device, data, *bytes);
    return emu::sticky_error();
  });
}

cudaError_t cudaMallocAsync(void** data, std::size_t bytes, cudaStream_t stream) {
  return api("cudaMallocAsync", cudaErrorMemoryAllocation, Capturing::refused, [&] {
    const cudaError_t error = emu::allocate(data, bytes);
    if (error == cudaSuccess && bytes > 0) emu::order_in_stream(stream, "cudaMallocAsync", *data);
    return error;
  });
}

cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  return api("cudaFreeAsync", cudaErrorInvalidValue, Capturing::refused, [&] {
    if (data == nullptr) return cudaSuccess;
    const auto bytes = emu::retire("cudaFreeAsync", data);
    if (!bytes) return cudaErrorInvalidValue;
    return emu::enqueue(stream, "cudaFreeAsync", [data, bytes] {
      emu::touch(data, 1, true);
      emu::reuse(emu::device, data, *bytes);
      return emu::Step::done;
    });
  });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return api("cudaDeviceGetDefaultMemPool", cudaErrorInvalidDevice, Capturing::allowed, [&] {
    static int the_one;
    if (device < 0 || device >= emu::config.gpus) return cudaErrorInvalidDevice;
    *pool = reinterpret_cast<cudaMemPool_t>(&the_one);
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return api("cudaMemPoolSetAttribute", cudaErrorInvalidValue, Capturing::allowed, [&] {
    // Nothing here depends on when the pool gives memory back.
    const bool is_known = attribute == cudaMemPoolAttrReleaseThreshold;
    return pool == nullptr || value == nullptr || !is_known ? cudaErrorInvalidValue : cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* left, std::size_t* total) {
  return api("cudaMemGetInfo", cudaErrorInvalidValue, Capturing::allowed, [&] {
    *total = emu::config.device_bytes;
    *left = *total - emu::device_bytes_in_use();
    return cudaSuccess;
  });
}

cudaError_t cudaMallocHost(void** data, std::size_t bytes) {
  return api("cudaMallocHost", cudaErrorMemoryAllocation, Capturing::refused,
             [&] { return emu::allocate_pinned(data, bytes); });
}

cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  return api("cudaHostAlloc", cudaErrorMemoryAllocation, Capturing::refused,
             [&] { return emu::allocate_pinned(data, bytes); });
}

cudaError_t cudaFreeHost(void* data) {
  return api("cudaFreeHost", cudaErrorInvalidValue, Capturing::refused, [&] {
    if (data == nullptr) return cudaSuccess;
    emu::wait_for_device();
    const std::lock_guard lock(emu::big_lock());
    const auto bytes = emu::pinned.retire(data);
    if (!bytes) {
      emu::report("cudaFreeHost of a pointer that is not the beginning of pinned memory");
      return cudaErrorInvalidValue;
    }
    emu::reuse(emu::pinned, data, *bytes);
    return emu::sticky_error();
  });
}
}
