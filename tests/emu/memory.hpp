// Memory of the device and pinned memory of the host. Both lie in one reserved range of addresses, so that
// the access checker covers both and peers can map it; it costs nothing until it is used.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace emu {

struct HeapRange {
  unsigned char* lo;
  unsigned char* hi;
};

/// Device memory and, behind it, pinned memory; null before the first allocation.
extern HeapRange heap;
/// Of the file that peers map.
extern int heap_fd;
void init_heap();

/// Whether the bytes lie in one allocation of device memory.
bool is_device_range(const void* p, std::size_t n);
/// Whether an address lies where device memory comes from, allocated or not.
bool is_device_address(const void* p);
/// Whether an address lies in an allocation of pinned memory.
bool is_pinned(const void* p);
/// Whether the bytes lie in one allocation of either kind: kernels may use them.
bool is_visible_to_device(const void* p, std::size_t n);

/// Every allocation of device memory, by address.
std::vector<std::span<const unsigned char>> device_allocations();
/// As requested, without rounding.
std::size_t device_bytes_in_use();
std::size_t device_bytes_peak();
/// The peak is what is in use now.
void reset_device_bytes_peak();

}  // namespace emu
