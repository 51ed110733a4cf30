// The two ends of the model: the head (final norm, projection to the vocabulary, cross-entropy) and its
// chunks. Logits exist only for one chunk of rows at a time, and their gradient replaces them, so that a
// large vocabulary costs little memory.
#pragma once

#include <vector>

#include "cartan/model/block.hpp"

namespace cartan::model {

/// How the head walks over a micro-batch. Chunks are whole sequences while those are small, or equal parts of
/// one sequence; the parts depend on the sequence length and the vocabulary only, so that sums keep their
/// canonical order.
struct HeadChunks {
  Index sequences = 1;  ///< whole sequences a chunk, where parts == 1
  Index parts = 1;      ///< chunks of one sequence
  Index rows = 0;       ///< rows of the largest chunk
};
HeadChunks head_chunks(device::SequenceShape shape, Index vocab);

/// Slots that the gradient of the head's matrix needs at the ends of chunks, over all micro-batches.
int head_slots_needed(const std::vector<FoldPlan>& plans, const HeadChunks& chunks);

class Head {
 public:
  Head(const ModelConfig& config, device::SequenceShape shape);
  const HeadChunks& chunks() const { return chunks_; }
  /// fp32 elements of the buffer `logits` that the calls below need.
  Index logits_elements() const { return chunks_.rows * vocab_; }

  /// row_loss [T] of the rows x [T, D]. norm_weight [D], matrix [V, D]; norm [T, D] is scratch.
  void loss(const BatchView& batch, device::ConstMatrix x, device::ConstVector norm_weight,
            device::ConstMatrix matrix, device::Matrix norm, device::Vector logits, device::Vector row_loss,
            device::Ops& ops, device::Stream& stream) const;
  /// As loss, and dx [T, D] = gradient of the summed loss; folds the gradients of norm weight and matrix.
  /// inv_rms fp32 [T] and norm, d_norm [T, D] are scratch. d_matrix.slots has as many entries as
  /// head_slots_needed says.
  void loss_and_gradients(const BatchView& batch, device::ConstMatrix x, device::ConstVector norm_weight,
                          device::ConstMatrix matrix, device::Matrix norm, device::Matrix d_norm,
                          device::Vector inv_rms, device::Vector logits, device::Vector row_loss,
                          device::Matrix dx, const device::GradientView& d_norm_weight,
                          const device::GradientView& d_matrix, device::Ops& ops,
                          device::Stream& stream) const;

 private:
  template <class Visit>
  void for_each_chunk(device::SequenceShape shape, const Visit& visit) const;

  Index vocab_;
  float eps_;
  HeadChunks chunks_;
};

}  // namespace cartan::model
