// A stage: consecutive units of the model that one rank owns, with the memory of their activations. Without
// pipelines it is the whole model.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cartan/model/head.hpp"
#include "cartan/model/unit_source.hpp"

namespace cartan::model {

/// Units [first, end) of describe_units; unit 0 is the embedding, the last one the head.
struct StageRange {
  Index first = 0, end = 0;
};

struct StageOptions {
  DType compute = DType::f32;
  device::SequenceShape micro;  ///< the largest micro-batch
  bool training = true;         ///< false: no activations are kept, backward is not possible
  int head_slots = 0;           ///< head_slots_needed of the run's fold plans
  int gradient_slots = 0;       ///< slots that the caller's gradient buffers have
  Index recompute_mlp = 0;      ///< first layers whose mid and gate_up are not kept but computed again
};

class Stage {
 public:
  Stage(const ModelConfig& config, StageRange range, const StageOptions& options, device::Device& device);
  ~Stage();
  Stage(Stage&&) noexcept;

  StageRange range() const;
  /// Runs embedding and blocks.
  void forward(const BatchView& batch, UnitSource& units);
  /// Row losses of the batch of the last forward, without gradients. With a head only.
  void loss(const BatchView& batch, UnitSource& units);
  /// Head, blocks and embedding in reverse, dgrad then wgrad of each; unit_done(i) is called when the
  /// gradients of unit range().first + i are complete for this micro-batch. The loss is the sum over rows:
  /// the caller divides by the tokens of the global batch.
  void backward(const BatchView& batch, UnitSource& units, const std::function<void(std::size_t)>& unit_done);
  /// fp32 [tokens], device memory; valid after loss or backward until the next call.
  device::ConstVector row_losses() const;
  /// logits fp32 [rows.rows, V] of rows of the last forward's output (`begin` first).
  void logits(UnitSource& units, Index begin, device::Matrix out);
  /// The output of layer `layer` of the last forward (0: embedding), for diagnosis. Training stages only.
  device::ConstMatrix hidden(Index layer, Index rows) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Sizes a BlockActivations/BlockWorkspace and hands out views: made twice, once to count bytes and once over
/// memory.
class ActivationLayout {
 public:
  explicit ActivationLayout(void* base = nullptr) : base_(static_cast<std::byte*>(base)) {}
  device::Matrix matrix(DType dtype, Index rows, Index cols);
  device::Vector vector(DType dtype, Index size);
  std::size_t bytes() const { return used_; }

 private:
  void* take(std::size_t bytes);
  std::byte* base_;
  std::size_t used_ = 0;
};

/// Without `keep_mlp` the caller sets mid and gate_up, which several blocks may share: add_mlp_activations.
BlockActivations make_activations(ActivationLayout& layout, const ModelConfig& config, DType dtype,
                                  Index tokens, bool keep_mlp);
void add_mlp_activations(ActivationLayout& layout, const ModelConfig& config, DType dtype, Index tokens,
                         BlockActivations& activations);
BlockWorkspace make_workspace(ActivationLayout& layout, const ModelConfig& config, DType dtype, Index tokens,
                              bool training);

}  // namespace cartan::model
