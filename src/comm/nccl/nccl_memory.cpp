#include "comm/nccl/nccl_memory.hpp"

#include "cartan/device/cuda_stream.hpp"

namespace cartan::comm {

Registrations::~Registrations() {
  const auto alive = link_.lock();
  if (alive == nullptr) return;
  for (void* handle : handles_) alive->deregister(handle);
}

void Registrations::add(void* data, std::size_t size_bytes) {
  const auto alive = link_.lock();
  void* const handle = alive == nullptr ? nullptr : alive->register_memory(data, size_bytes);
  if (handle != nullptr) handles_.push_back(handle);
}

device::Buffer allocate_mappable(device::Device& device, std::size_t size_bytes, device::MemoryKind kind,
                                 std::string_view label, std::shared_ptr<Registrations> registered) {
  void* data = nullptr;
  if (size_bytes == 0 || ncclMemAlloc(&data, size_bytes) != ncclSuccess) {
    cudaGetLastError();  // a refusal does not stick
    return device.allocate(size_bytes, kind, label);
  }
  if (registered != nullptr) registered->add(data, size_bytes);
  return {data, size_bytes, kind, device.ledger(),
          [&device, registered = std::move(registered)](void* memory) mutable {
            device::finish_gpu(device.compute_stream());
            registered.reset();
            ncclMemFree(memory);
          }};
}

}  // namespace cartan::comm
