// Device memory in which the groups of a mesh receive what peers send to be summed. One room serves them all,
// and its size depends on nothing, so that sim counts the same.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "cartan/device/device.hpp"

namespace cartan::comm {

class ReductionRoom {
 public:
  /// A round of the largest reduction then takes 0.1 ms or more on today's links: much longer than its
  /// launch.
  static constexpr std::size_t kBytes = std::size_t{64} << 20;

  /// Where it is. Reductions on different streams use it in turn.
  struct Place {
    device::Device& device;
    device::Buffer memory;
    device::Event free{};  ///< the last reduction is done with it
  };

  /// Memory of a kind of its own; none: the device's.
  using Allocate = std::function<device::Buffer(device::Device&, std::size_t size_bytes, device::MemoryKind,
                                                std::string_view label)>;

  explicit ReductionRoom(std::size_t size_bytes, Allocate allocate = {})
      : size_bytes_(size_bytes), allocate_(std::move(allocate)) {}

  /// The room on `device`, booked as communication there, for as long as somebody holds it. Throws
  /// InternalError while it is held on another device.
  std::shared_ptr<Place> on(device::Device& device);
  /// Null if nobody holds it.
  std::shared_ptr<Place> held() const { return place_.lock(); }

 private:
  std::size_t size_bytes_;
  Allocate allocate_;
  std::weak_ptr<Place> place_;
};

}  // namespace cartan::comm
