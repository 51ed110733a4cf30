// Memory that NCCL reaches without copies of its own: it comes from NCCL, because what the stream-ordered
// pool of the device gives cannot be mapped by peers or switches, and is registered with the communicators
// that use it.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "cartan/device/device.hpp"
#include "comm/nccl/nccl_link.hpp"

namespace cartan::comm {

/// What of a GPU's memory is registered with one communicator, until this or the communicator goes.
class Registrations {
 public:
  explicit Registrations(std::weak_ptr<NcclLink> link) : link_(std::move(link)) {}
  Registrations(const Registrations&) = delete;
  Registrations& operator=(const Registrations&) = delete;
  ~Registrations();

  /// Nothing happens where NCCL does not want to.
  void add(void* data, std::size_t size_bytes);
  bool is_empty() const { return handles_.empty(); }

 private:
  std::weak_ptr<NcclLink> link_;
  std::vector<void*> handles_;
};

/// Memory that NCCL can map for peers, added to `registered`, which is given up before the bytes. Where the
/// driver has none the device's own serves, unregistered. Booked like any other.
device::Buffer allocate_mappable(device::Device& device, std::size_t size_bytes, device::MemoryKind kind,
                                 std::string_view label, std::shared_ptr<Registrations> registered = nullptr);

}  // namespace cartan::comm
