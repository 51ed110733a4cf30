// The row losses of a step: they stay in the device's memory until its end, so that no micro-batch waits for
// the host.
#pragma once

#include <optional>
#include <vector>

#include "cartan/core/exact_sum.hpp"
#include "cartan/data/batch.hpp"
#include "cartan/device/device.hpp"
#include "cartan/model/stage.hpp"

namespace cartan::train {

class StepLosses {
 public:
  /// most_rows: of a step, 0 on a rank that computes no losses.
  StepLosses(device::Device& device, Index most_rows);

  /// Before the first row of a step.
  void clear();
  /// Copies the losses of a flight's rows, in the order of the compute stream.
  void collect(const data::Batch& rows, Index first_leaf, const model::Flight& flight);
  /// Brings to the host what was collected. Blocks.
  void read();

  /// Rows with a target among those collected.
  Index targets() const { return targets_; }
  /// Of the rows read, exactly: no grouping of rows matters.
  const ExactSum& sum() const { return sum_; }
  /// The sequence of the global batch with the first row read whose loss is not finite.
  std::optional<Index> nonfinite_leaf() const { return nonfinite_leaf_; }

 private:
  /// Rows of one flight.
  struct Piece {
    Index first_leaf, seq, rows;
  };

  device::Device& device_;
  device::Buffer values_;
  std::vector<float> host_;
  std::vector<Piece> pieces_;
  Index rows_ = 0, targets_ = 0;
  ExactSum sum_;
  std::optional<Index> nonfinite_leaf_;
};

}  // namespace cartan::train
