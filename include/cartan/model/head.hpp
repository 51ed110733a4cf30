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
  /// `config` is that of the whole model; the group's ranks hold parts of the vocabulary.
  Head(const ModelConfig& config, device::SequenceShape shape, const TensorGroup& tensor);
  const HeadChunks& chunks() const { return chunks_; }

  // R: rows of the micro-batch's T that this rank owns; V: rows of the vocabulary that it holds.

  /// row_loss [T], on every rank of the group, of the rows x [R, D]. norm_weight [D], matrix [V, D].
  void loss(const BatchView& batch, device::ConstMatrix x, device::ConstVector norm_weight,
            device::ConstMatrix matrix, device::Vector row_loss, const Workplace& work) const;
  /// As loss, and returns `scale` times the gradient of the summed loss [R, D]; folds the gradients of norm
  /// weight and matrix, each of which may be absent. d_matrix.slots has as many entries as head_slots_needed
  /// says.
  device::ArenaMatrix loss_and_gradients(const BatchView& batch, device::ConstMatrix x,
                                         device::ConstVector norm_weight, device::ConstMatrix matrix,
                                         device::Vector row_loss, const float* scale,
                                         const device::GradientView& d_norm_weight,
                                         const device::GradientView& d_matrix, const Workplace& work) const;

 private:
  template <class Visit>
  void for_each_chunk(device::SequenceShape shape, const Visit& visit) const;
  /// Losses of a chunk's rows from its logits z, which dz, where given, replaces.
  void cross_entropy(device::ConstMatrix z, std::span<const std::int32_t> targets, device::Vector row_loss,
                     device::Matrix dz, const float* scale, const Workplace& work) const;

  TensorGroup tensor_;
  Index vocab_, first_;  ///< of this rank
  float eps_;
  HeadChunks chunks_;
};

}  // namespace cartan::model
