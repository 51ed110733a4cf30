// A stage: consecutive units of the model that one rank runs. Without pipelines it is the whole model.
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
  device::SequenceShape micro;         ///< the largest micro-batch: rows of this rank
  Index rope_positions = 0;            ///< length of whole sequences
  Index rope_length = 0;               ///< which the frequencies are chosen for; 0: rope_positions
  DType rope_rounding = DType::f32;    ///< of the rotary tables' values
  bool training = true;                ///< false: backward is not possible
  int head_slots = 0;                  ///< head_slots_needed of the run's fold plans
  int gradient_slots = 0;              ///< slots that the caller's gradient buffers have
  Recompute recompute;                 ///< what is not kept but computed again,
  std::vector<bool> recompute_layers;  ///< in these of the model's layers
  std::vector<bool> offload_layers;    ///< of these, activations wait outside of the device's memory
  const Fp8Scales* fp8 = nullptr;  ///< of all layers, where blocks multiply 8-bit codes; outlives the stage
};

/// One micro-batch on its way through a stage: what forward keeps for the backward pass.
struct Flight {
  BatchView batch;
  const float* loss_scale = nullptr;  ///< in the device's memory: gradients are multiplied by it; null: 1
  device::ArenaMatrix input;          ///< [R, D] of a stage without embedding, to be filled before forward
  device::ArenaMatrix
      output;  ///< [R, D]; R: rows of the micro-batch that this rank of tensor parallelism owns
  std::vector<BlockActivations> blocks;
  std::vector<OffloadedActivations> offloaded;
  std::vector<BlockGradients> gradients;  ///< of blocks whose wgrad is still to come
  device::ArenaMatrix d_embedded;         ///< [R, D] gradient of the look-up, likewise
  device::ArenaVector row_loss;           ///< fp32 [T], where there is a head
};

/// How far a call of backward goes.
enum class Backward { all, input, weight };

class Stage {
 public:
  /// Unit i of a call's UnitSource is unit range.first + i; where a tied head comes without look-up, the
  /// embedding is unit 0 and the others follow.
  /// host: for activations that are offloaded; may be absent where none are.
  Stage(const ModelConfig& config, StageRange range, const StageOptions& options, const TensorGroup& tensor,
        const ContextGroup& context, device::Device& device, device::Arena& arena,
        device::Arena* host = nullptr);
  ~Stage();
  Stage(Stage&&) noexcept;

  bool has_head() const;
  std::size_t units() const;  ///< of a UnitSource

  /// Makes room for the input of a stage without embedding.
  device::ArenaMatrix make_boundary(device::SequenceShape shape) const;
  /// Embedding and blocks: fills flight.output. `keeps`: what a backward pass needs.
  void forward(Flight& flight, UnitSource& units, bool keeps);
  /// Row losses of a flight that has been forward, without gradients. With a head only.
  void loss(Flight& flight, UnitSource& units);
  /// Head, blocks and embedding in reverse. `d_output`: gradient of the output, of a stage without head.
  /// Returns the gradient of the input, of a stage without embedding; zeros where no earlier stage trains
  /// anything. Units in front of the model's first trained one have no backward pass. unit_done(i) is called
  /// when the gradients of unit i of the source are complete for this micro-batch. The loss is the sum over
  /// rows: the caller divides by the tokens of the global batch. `input` leaves the gradients of the blocks'
  /// weights to a later call of `weight`.
  device::ArenaMatrix backward(Flight& flight, UnitSource& units, device::ArenaMatrix d_output, Backward how,
                               const std::function<void(std::size_t)>& unit_done);
  /// logits fp32 [out.rows, V] of rows of a flight (`begin` first) for the V rows of the vocabulary that this
  /// rank holds. With a head only. Collective over the tensor group.
  void logits(const Flight& flight, UnitSource& units, Index begin, device::Matrix out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cartan::model
