#include "cartan/store/slab_copy.hpp"

#include <new>

#include "cartan/core/error.hpp"

namespace cartan::store {
namespace {

constexpr std::align_val_t kAlignment{64};

device::Buffer allocate_host(std::size_t bytes, device::MemoryLedger& ledger) {
  return {::operator new(bytes, kAlignment), bytes, device::MemoryKind::io, ledger,
          [](void* data) { ::operator delete(data, kAlignment); }};
}

std::size_t bytes_of(const Slab& slab, std::span<const TensorInfo> tensors) {
  CARTAN_ASSERT(slab.tensor < tensors.size());
  return static_cast<std::size_t>(slab.count) * size_of(tensors[slab.tensor].dtype);
}

}  // namespace

void SlabCopy::copy(std::span<Slab> slabs, std::span<const TensorInfo> tensors) {
  std::size_t bytes = 0;
  for (const Slab& slab : slabs) bytes += bytes_of(slab, tensors);
  if (buffer_.size_bytes() < bytes) {
    buffer_.reset();  // before the new one is made: never two
    buffer_ = allocate_host(bytes, device_.ledger());
  }
  auto* next = buffer_.as<std::byte>();
  for (std::size_t first = 0; first < slabs.size();) {
    const auto* const from = static_cast<const std::byte*>(slabs[first].data);
    std::byte* const to = next;
    std::size_t run = 0, end = first;
    for (; end < slabs.size() && slabs[end].data == from + run; ++end) {
      const std::size_t size = bytes_of(slabs[end], tensors);
      slabs[end].data = to + run;
      run += size;
    }
    device_.copy_out(to, from, run, device_.compute_stream());
    next += run;
    first = end;
  }
}

}  // namespace cartan::store
