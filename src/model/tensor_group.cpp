#include "cartan/model/tensor_group.hpp"

#include <vector>

#include "cartan/core/narrow.hpp"

namespace cartan::model {

using device::ArenaMatrix;
using device::ConstMatrix;
using device::Matrix;
using device::SequenceShape;

namespace {

comm::ByteView bytes_of(const Matrix& m) {
  return {static_cast<std::byte*>(m.data), narrow<std::size_t>(m.rows * m.cols) * size_of(m.dtype)};
}

}  // namespace

TensorGroup::TensorGroup(comm::Communicator& comm)
    : comm_(comm.size() > 1 ? &comm : nullptr), slice_{comm.rank(), comm.size()} {}

GatheredRows TensorGroup::gather(ConstMatrix own, SequenceShape shape, const Workplace& work) const {
  if (is_alone()) return {own, {}};
  GatheredRows all;
  all.memory = work.arena.matrix(own.dtype, shape.tokens(), own.cols);
  all.view = static_cast<const Matrix&>(all.memory);
  const Index each = own_rows(shape).length;
  for (Index s = 0; s < shape.sequences; ++s) {
    const Matrix sequence = all.memory.row_block(s * shape.length, shape.length);
    work.ops().copy(own.row_block(s * each, each), sequence.row_block(slice_.index * each, each),
                    work.stream());
    std::vector<comm::ByteView> parts;
    parts.reserve(narrow<std::size_t>(slice_.count));
    for (int r = 0; r < slice_.count; ++r) parts.push_back(bytes_of(sequence.row_block(r * each, each)));
    work.stream().wait(comm_->all_gather_parts(std::move(parts), work.stream()));
  }
  return all;
}

void TensorGroup::sum_to_owners(ConstMatrix partial, ConstMatrix residual, Matrix out, SequenceShape shape,
                                const Workplace& work) const {
  const Index each = own_rows(shape).length;
  const ArenaMatrix received = work.arena.matrix(partial.dtype, shape.length, partial.cols);
  for (Index s = 0; s < shape.sequences; ++s) {
    const ConstMatrix sequence = partial.row_block(s * shape.length, shape.length);
    const comm::ByteView in = bytes_of(
        {const_cast<void*>(sequence.data), sequence.dtype, sequence.rows, sequence.cols, sequence.stride});
    work.stream().wait(comm_->all_to_all(in, bytes_of(received), work.stream()));
    work.ops().sum_parts(received, slice_.count,
                         residual.cols == 0 ? residual : residual.row_block(s * each, each),
                         out.row_block(s * each, each), work.stream());
  }
}

void TensorGroup::row_split_product(ConstMatrix x, ConstMatrix w, ConstMatrix residual, Matrix out,
                                    SequenceShape shape, const Workplace& work) const {
  if (is_alone()) {
    work.ops().copy(residual, out, work.stream());
    work.ops().linear_forward(x, w, {}, out, true, shape, work.stream());
    return;
  }
  const ArenaMatrix partial = work.matrix(x.rows, w.rows);
  work.ops().linear_forward(x, w, {}, partial, false, shape, work.stream());
  sum_to_owners(partial, residual, out, shape, work);
}

ArenaMatrix TensorGroup::input_gradient(ConstMatrix dy, ConstMatrix w, SequenceShape shape,
                                        const Workplace& work) const {
  ArenaMatrix partial = work.matrix(dy.rows, w.cols);
  work.ops().linear_backward_input(dy, w, partial, false, shape, work.stream());
  if (is_alone()) return partial;
  ArenaMatrix own = work.matrix(own_rows(shape).tokens(), w.cols);
  sum_to_owners(partial, {}, own, shape, work);
  return own;
}

}  // namespace cartan::model
