// Linear layers whose products are made of 8-bit codes: the scale of every tensor, by delayed scaling. The
// scale of a step follows from the largest magnitudes of the steps before, so that no tensor is read twice
// and no rank waits for another's maximum: scale = largest number of the format / (largest of the history *
// 2^margin). Sources: Micikevicius et al. 2022, arXiv:2209.05433; NVIDIA Transformer Engine, "Using FP8",
// recipe DelayedScaling.
#pragma once

#include <span>
#include <vector>

#include "cartan/comm/communicator.hpp"
#include "cartan/device/device.hpp"

namespace cartan::model {

/// The scales of a linear layer's tensors: its input and weights (e4m3), and the gradient of its output
/// (e5m2).
struct Fp8Linear {
  device::Fp8Scale x, w, dy;
  explicit operator bool() const { return x.scale != nullptr; }
};

/// The linear layers of a block.
enum class BlockLinear { qkv, o, gate_up, down };
inline constexpr std::size_t kBlockLinears = 4;

struct Fp8Options {
  Index history = 16;  ///< steps
  int margin = 0;      ///< powers of two between the largest number met and the largest of the format
};

/// Of all layers of the model, the same on every rank.
class Fp8Scales {
 public:
  Fp8Scales(Index layers, const Fp8Options& options, device::Device& device);

  Fp8Linear linear(Index layer, BlockLinear which) const;

  /// Forgets the maxima met since the last step: what an evaluation met counts for nothing.
  void begin_step();
  /// The maxima over all ranks enter the history, and new scales follow. What is not finite enters as 0,
  /// which says nothing. Waits for the device. Collective over `world`.
  void end_step(comm::Communicator& world);

  /// Maxima of the latest steps, newest first: fp32 [history, layers, kBlockLinears, 3] in the order x, w,
  /// dy; 0 where nothing was met. All that a checkpoint needs.
  device::Vector history() const;
  std::vector<Index> history_shape() const;
  /// Takes up a history, perhaps of more or fewer steps.
  void restore(std::span<const float> history);

 private:
  void update_scales();

  device::Device& device_;
  Fp8Options options_;
  Index layers_, tensors_;
  device::Buffer buffer_;                ///< scales, their inverses, maxima, history
  std::vector<float> scales_, history_;  ///< scales and inverses; the history
};

}  // namespace cartan::model
