#include "comm/reduction_room.hpp"

#include "cartan/core/error.hpp"

namespace cartan::comm {

std::shared_ptr<ReductionRoom::Place> ReductionRoom::on(device::Device& device) {
  std::shared_ptr<Place> place = held();
  if (place == nullptr) {
    constexpr auto kKind = device::MemoryKind::communication;
    constexpr std::string_view kLabel = "what ranks send to be summed";
    place = std::make_shared<Place>(Place{device, allocate_ ? allocate_(device, size_bytes_, kKind, kLabel)
                                                            : device.allocate(size_bytes_, kKind, kLabel)});
    place_ = place;
  }
  if (&place->device != &device)
    throw InternalError("the groups of a mesh work on one device at a time, but on {} and on {}",
                        place->device.description(), device.description());
  return place;
}

}  // namespace cartan::comm
