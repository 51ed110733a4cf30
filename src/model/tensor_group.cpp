// Collectives of rows beside the products that need them or make them.
#include "cartan/model/tensor_group.hpp"

#include <algorithm>
#include <utility>

#include "cartan/core/narrow.hpp"

namespace cartan::model {

using device::ArenaMatrix;
using device::ConstMatrix;
using device::ConstVector;
using device::Matrix;
using device::SequenceShape;

namespace {

comm::ByteView bytes_of(const Matrix& m) {
  return {static_cast<std::byte*>(m.data), narrow<std::size_t>(m.rows * m.cols) * size_of(m.dtype)};
}

}  // namespace

TensorGroup::TensorGroup(comm::Communicator& comm, TensorOverlap overlap, TensorRows rows)
    : comm_(comm.size() > 1 ? &comm : nullptr),
      slice_{comm.rank(), comm.size()},
      overlap_(std::move(overlap)),
      rows_(rows) {}

// Groups of whole sequences where there are enough of them, else runs of rows of each sequence.
std::vector<TensorGroup::Chunk> TensorGroup::chunks_of(SequenceShape shape) const {
  const Index each = own_rows(shape).length;
  const Index groups = std::clamp<Index>(overlap_.chunks, 1, shape.sequences);
  const Index runs = std::min<Index>(ceil_div(overlap_.chunks, groups), each);
  std::vector<Chunk> chunks;
  for (Index g = 0; g < groups; ++g) {
    const LeafRange sequences = leaf_range(shape.sequences, narrow<int>(g), narrow<int>(groups));
    for (Index r = 0; r < runs; ++r) {
      const LeafRange rows = leaf_range(each, narrow<int>(r), narrow<int>(runs));
      chunks.push_back({sequences.begin, sequences.end - sequences.begin, rows.begin, rows.end - rows.begin});
    }
  }
  return chunks;
}

GatheredRows TensorGroup::gather(ConstMatrix own, SequenceShape shape, const Workplace& work,
                                 const UseRows& use) const {
  GatheredRows all;
  if (is_alone() || has_all_rows()) {
    all.view = own;
    if (use) use(all, 0, shape);
    return all;
  }
  all.memory = work.arena.matrix(own.dtype, shape.tokens(), own.cols);
  all.view = static_cast<const Matrix&>(all.memory);
  const Index each = own_rows(shape).length;
  for (Index s = 0; s < shape.sequences; ++s)
    work.ops().copy(own.row_block(s * each, each),
                    all.memory.row_block(s * shape.length + slice_.index * each, each), work.stream());
  stream(work).wait(work.stream().record());
  const auto chunks = chunks_of(shape);
  std::vector<device::Event> there;
  there.reserve(chunks.size());
  for (const Chunk& chunk : chunks) {
    for (Index s = chunk.sequence; s < chunk.sequence + chunk.sequences; ++s) {
      std::vector<comm::ByteView> parts;
      parts.reserve(narrow<std::size_t>(slice_.count));
      for (Index r = 0; r < slice_.count; ++r)
        parts.push_back(
            bytes_of(all.memory.row_block(s * shape.length + r * each + chunk.begin, chunk.rows)));
      const device::Event event = comm_->all_gather_parts(std::move(parts), stream(work));
      if (s + 1 == chunk.sequence + chunk.sequences) there.push_back(event);
    }
  }
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const Chunk& chunk = chunks[c];
    work.stream().wait(there[c]);
    if (!use) continue;
    if (chunk.rows == each) {
      use(all, chunk.sequence * shape.length, {chunk.sequences, shape.length});
      continue;
    }
    for (Index s = chunk.sequence; s < chunk.sequence + chunk.sequences; ++s)
      for (Index r = 0; r < slice_.count; ++r)
        use(all, s * shape.length + r * each + chunk.begin, {1, chunk.rows});
  }
  return all;
}

void TensorGroup::sum_to_owners(ConstMatrix partial, ConstMatrix residual, Matrix out, SequenceShape shape,
                                const Workplace& work) const {
  if (has_all_rows()) {
    const ArenaMatrix received =
        work.arena.matrix(partial.dtype, slice_.count * shape.tokens(), partial.cols);
    const Matrix sent{const_cast<void*>(partial.data), partial.dtype, partial.rows, partial.cols,
                      partial.stride};
    comm_->all_gather(bytes_of(sent), bytes_of(received), work.stream());
    work.ops().sum_parts(received, slice_.count, residual, out, work.stream());
    return;
  }
  const Index each = own_rows(shape).length;
  const ArenaMatrix received = work.arena.matrix(partial.dtype, shape.length, partial.cols);
  for (Index s = 0; s < shape.sequences; ++s) {
    const ConstMatrix sequence = partial.row_block(s * shape.length, shape.length);
    const comm::ByteView in = bytes_of(
        {const_cast<void*>(sequence.data), sequence.dtype, sequence.rows, sequence.cols, sequence.stride});
    comm_->all_to_all(in, bytes_of(received), work.stream());
    work.ops().sum_parts(received, slice_.count,
                         residual.cols == 0 ? residual : residual.row_block(s * each, each),
                         out.row_block(s * each, each), work.stream());
  }
}

void TensorGroup::make_and_sum(Index cols, ConstMatrix residual, Matrix out, SequenceShape shape,
                               const Workplace& work, const MakeRows& make) const {
  const Index each = own_rows(shape).length;
  const auto chunks = has_all_rows() ? std::vector<Chunk>(1) : chunks_of(shape);
  if (chunks.size() == 1) {
    const ArenaMatrix partial = work.matrix(shape.tokens(), cols);
    make(0, shape, partial);
    sum_to_owners(partial, residual, out, shape, work);
    return;
  }
  /// A chunk on its way: the rows of all ranks that this one made, and those that all made of its own.
  struct Travelling {
    Chunk chunk;
    ArenaMatrix made, received;
    device::Event there;
  };
  const auto arrive = [&](const Travelling& one) {
    work.stream().wait(one.there);
    const Index rows = one.chunk.rows, all = rows * slice_.count;
    for (Index s = 0; s < one.chunk.sequences; ++s) {
      const Index begin = (one.chunk.sequence + s) * each + one.chunk.begin;
      work.ops().sum_parts(one.received.row_block(s * all, all), slice_.count,
                           residual.cols == 0 ? residual : residual.row_block(begin, rows),
                           out.row_block(begin, rows), work.stream());
    }
  };
  Travelling last;
  for (const Chunk& chunk : chunks) {
    const Index all = chunk.rows * slice_.count;
    Travelling one{
        chunk, work.matrix(chunk.sequences * all, cols), work.matrix(chunk.sequences * all, cols), {}};
    if (chunk.rows == each) {
      make(chunk.sequence * shape.length, {chunk.sequences, shape.length}, one.made);
    } else {
      for (Index s = 0; s < chunk.sequences; ++s)
        for (Index r = 0; r < slice_.count; ++r)
          make((chunk.sequence + s) * shape.length + r * each + chunk.begin, {1, chunk.rows},
               one.made.row_block(s * all + r * chunk.rows, chunk.rows));
    }
    stream(work).wait(work.stream().record());
    for (Index s = 0; s < chunk.sequences; ++s)
      one.there = comm_->all_to_all(bytes_of(one.made.row_block(s * all, all)),
                                    bytes_of(one.received.row_block(s * all, all)), stream(work));
    if (last.chunk.rows > 0) arrive(last);
    last = std::move(one);
  }
  arrive(last);
}

GatheredRows TensorGroup::column_split_product(ConstMatrix own, const Linear& linear, Matrix out,
                                               SequenceShape shape, const Workplace& work) const {
  return gather(own, shape, work, [&](const GatheredRows& all, Index begin, SequenceShape rows) {
    linear.forward(all.view.row_block(begin, rows.tokens()), out.row_block(begin, rows.tokens()), false,
                   begin, rows, work);
  });
}

void TensorGroup::row_split_product(ConstMatrix x, const Linear& linear, ConstMatrix residual, Matrix out,
                                    SequenceShape shape, const Workplace& work) const {
  if (is_alone()) {
    work.ops().copy(residual, out, work.stream());
    linear.forward(x, out, true, 0, shape, work);
    return;
  }
  make_and_sum(out.cols, residual, out, shape, work, [&](Index begin, SequenceShape rows, Matrix part) {
    linear.forward(x.row_block(begin, rows.tokens()), part, false, begin, rows, work);
  });
}

ArenaMatrix TensorGroup::input_gradient(ConstMatrix dy, const Linear& linear, SequenceShape shape,
                                        const Workplace& work) const {
  const Index cols = linear.layer().cols();
  ArenaMatrix own = work.matrix(own_rows(shape).tokens(), cols);
  const auto make = [&](Index begin, SequenceShape rows, Matrix part) {
    linear.backward_input(dy.row_block(begin, rows.tokens()), part, begin, rows, work);
  };
  if (is_alone())
    make(0, shape, own);
  else
    make_and_sum(cols, {}, own, shape, work, make);
  return own;
}

GatheredRows TensorGroup::output_gradient(ConstMatrix own, const Linear& linear, Matrix dx,
                                          SequenceShape shape, const Workplace& work) const {
  return gather(own, shape, work, [&](const GatheredRows& all, Index begin, SequenceShape rows) {
    linear.backward_input(all.view.row_block(begin, rows.tokens()), dx.row_block(begin, rows.tokens()), begin,
                          rows, work);
  });
}

}  // namespace cartan::model
