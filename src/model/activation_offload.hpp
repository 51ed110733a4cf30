// Activations that wait for the backward pass outside of the device's memory: a block's go out while the next
// block is computed, and come back while the block behind is.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "cartan/model/block.hpp"

namespace cartan::model {

class ActivationOffload {
 public:
  /// `host`: an arena of memory that the device allocated as offloaded.
  ActivationOffload(device::Device& device, device::Arena& host);

  /// The block's matrices go out; their memory is free after the next call, or after release.
  void send(BlockActivations& saved, OffloadedActivations& to);
  /// Nothing is on its way out any more for what the compute stream does from now on.
  void release();
  /// They come back, into pieces of `arena`, after release. Nothing happens if they do already.
  void fetch(OffloadedActivations& from, BlockActivations& saved, device::Arena& arena);
  /// They are there for what the compute stream does from now on.
  void arrive(OffloadedActivations& from);

 private:
  device::Device& device_;
  device::Arena& host_;
  std::unique_ptr<device::Stream> out_, in_;
  std::vector<device::ArenaPiece> leaving_;
  device::Event left_;
};

}  // namespace cartan::model
