// Tensor and sequence parallelism: the ranks of a group hold parts of each weight matrix, and each keeps its
// own part of the rows of the residual stream. Before a column-split product rows are gathered; after a
// row-split one partial sums go to the owners of the rows. Both go on beside the product where rows are taken
// in several chunks. Sources: Shoeybi et al. 2019, arXiv:1909.08053;
// Korthikanti et al. 2022, arXiv:2205.05198.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cartan/comm/communicator.hpp"
#include "cartan/device/arena.hpp"
#include "cartan/model/linear.hpp"
#include "cartan/model/parameters.hpp"
#include "cartan/model/workplace.hpp"

namespace cartan::model {

/// Where the messages of a tensor group travel while the device computes.
struct TensorOverlap {
  int chunks = 1;                            ///< rows are communicated and multiplied in so many parts
  std::shared_ptr<device::Stream> stream{};  ///< null: the compute stream, one after the other
};

/// Which rows of the residual stream a rank has.
enum class TensorRows {
  own,  ///< its part: sequence parallelism
  all,  ///< all ranks the same: for few rows at a time, and where no backward pass follows
};

/// Rows of all ranks of a group: a view of the own rows where there is one rank, else memory of their own.
struct GatheredRows {
  device::ConstMatrix view;
  device::ArenaMatrix memory;
};

class TensorGroup {
 public:
  /// A group of one.
  TensorGroup() = default;
  explicit TensorGroup(comm::Communicator& comm, TensorOverlap overlap = {},
                       TensorRows rows = TensorRows::own);

  bool is_alone() const { return comm_ == nullptr; }
  TensorSlice slice() const { return slice_; }
  comm::Communicator* communicator() const { return comm_; }
  /// Of each sequence a rank owns consecutive rows, as many as every other: length must be divisible. With
  /// TensorRows::all every rank owns all of them.
  device::SequenceShape own_rows(device::SequenceShape all) const {
    return has_all_rows() ? all : device::SequenceShape{all.sequences, all.length / slice_.count};
  }

  // `shape` is that of all rows; matrices hold [sequences * length, columns]. Collective.

  /// Works on the rows from `begin` on, which are there now; each row once.
  using UseRows = std::function<void(const GatheredRows& all, Index begin, device::SequenceShape rows)>;
  GatheredRows gather(device::ConstMatrix own, device::SequenceShape shape, const Workplace& work,
                      const UseRows& use = {}) const;
  /// out = residual + the sum over ranks of `partial`, in the order of ranks, for the own rows. `residual`
  /// may be absent (no columns), or be out.
  void sum_to_owners(device::ConstMatrix partial, device::ConstMatrix residual, device::Matrix out,
                     device::SequenceShape shape, const Workplace& work) const;

  // The products of a linear layer.

  /// out = gathered own w^T + bias: own [own rows, K], w [N part, K], out [all rows, N part]. Returns the
  /// gathered rows.
  GatheredRows column_split_product(device::ConstMatrix own, const Linear& linear, device::Matrix out,
                                    device::SequenceShape shape, const Workplace& work) const;
  /// out = residual + x w^T: x [all rows, K part], w [N, K part], out and residual the own rows.
  void row_split_product(device::ConstMatrix x, const Linear& linear, device::ConstMatrix residual,
                         device::Matrix out, device::SequenceShape shape, const Workplace& work) const;
  /// The gradient dy w of a column-split product's input, for the own rows.
  device::ArenaMatrix input_gradient(device::ConstMatrix dy, const Linear& linear,
                                     device::SequenceShape shape, const Workplace& work) const;
  /// dx = gathered own w, the gradient of a row-split product's input: own [own rows, N], w [N, K part],
  /// dx [all rows, K part]. Returns the gathered rows.
  GatheredRows output_gradient(device::ConstMatrix own, const Linear& linear, device::Matrix dx,
                               device::SequenceShape shape, const Workplace& work) const;

 private:
  /// Rows that travel together: of some sequences, a run of the rows that each rank owns.
  struct Chunk {
    Index sequence = 0, sequences = 0;
    Index begin = 0, rows = 0;  ///< of the own rows of a sequence
  };
  std::vector<Chunk> chunks_of(device::SequenceShape shape) const;
  /// Fills `part` with the rows from `begin` on of what is to be summed.
  using MakeRows = std::function<void(Index begin, device::SequenceShape rows, device::Matrix part)>;
  void make_and_sum(Index cols, device::ConstMatrix residual, device::Matrix out, device::SequenceShape shape,
                    const Workplace& work, const MakeRows& make) const;
  device::Stream& stream(const Workplace& work) const {
    return overlap_.stream ? *overlap_.stream : work.stream();
  }

  bool has_all_rows() const { return rows_ == TensorRows::all; }

  comm::Communicator* comm_ = nullptr;
  TensorSlice slice_;
  TensorOverlap overlap_;
  TensorRows rows_ = TensorRows::own;
};

}  // namespace cartan::model
