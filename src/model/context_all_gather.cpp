// Context parallelism by all-gather: the keys and values of one sequence at a time come together on every
// rank, and each of its two chunks of queries attends to all positions up to its own end, as one rank alone
// would. In the backward pass every rank has partial gradients of all keys and values, which go to the owners
// of the rows.
#include "model/context_exchange.hpp"

namespace cartan::model {

using device::ArenaMatrix;
using device::AttentionShape;
using device::ConstMatrix;
using device::Matrix;
using device::Vector;

namespace {

/// K|V of whole sequence `sequence`, in the order of positions.
void gather_sequence(const ContextLink& link, const AttentionOperands& of, Index sequence, const Matrix& all,
                     const Workplace& work) {
  const Zigzag& cut = link.cut;
  for (const int part : Zigzag::kParts) {
    const Matrix own = chunk_of(all, cut.position(cut.rank, part), cut);
    const Index row = cut.row(sequence, part), width = of.k.cols;
    work.ops().copy(chunk_of(of.k, row, cut), own.col_block(0, width), work.stream());
    work.ops().copy(chunk_of(of.v, row, cut), own.col_block(width, width), work.stream());
    std::vector<comm::ByteView> parts;
    parts.reserve(narrow<std::size_t>(cut.ranks));
    for (int r = 0; r < cut.ranks; ++r) parts.push_back(bytes_of(chunk_of(all, cut.position(r, part), cut)));
    link.comm.all_gather_parts(std::move(parts), work.stream());
  }
}

/// The queries of a part with all keys up to its end.
AttentionShape prefix_shape(const AttentionOperands& of, const Zigzag& cut, int part) {
  const Index first = cut.position(cut.rank, part);
  return attention_shape(of, first, cut.chunk_rows, 0, first + cut.chunk_rows);
}

/// Sums the ranks' gradients of one sequence, `partial` fp32 in the order of positions, into the owners'
/// rows. `partial` is used up.
void sum_to_owners(const ContextLink& link, const Matrix& partial, const Matrix& own, Index sequence,
                   const Workplace& work) {
  const Zigzag& cut = link.cut;
  const Index half = cut.ranks * cut.chunk_rows;
  const ArenaMatrix received = work.arena.matrix(partial.dtype, half, partial.cols);
  // The chunks of part 0 lie in the order of their owners; those of part 1, which lie in the opposite order,
  // then take their places.
  const Matrix sent = partial.row_block(0, half);
  for (const int part : Zigzag::kParts) {
    for (int r = 0; part == 1 && r < cut.ranks; ++r)
      work.ops().copy(chunk_of(partial, cut.position(r, part), cut), chunk_of(sent, r * cut.chunk_rows, cut),
                      work.stream());
    link.comm.all_to_all(bytes_of(sent), bytes_of(received), work.stream());
    work.ops().sum_parts(received, cut.ranks, {}, chunk_of(own, cut.row(sequence, part), cut), work.stream());
  }
}

}  // namespace

void all_gather_forward(const ContextLink& link, const AttentionOperands& of, Matrix out, Vector log_sum_exp,
                        const Workplace& work) {
  const Zigzag& cut = link.cut;
  const ArenaMatrix all = work.arena.matrix(of.k.dtype, cut.whole_length(), 2 * of.k.cols);
  for (Index s = 0; s < of.shape.sequences; ++s) {
    gather_sequence(link, of, s, all, work);
    for (const int part : Zigzag::kParts) {
      const AttentionShape shape = prefix_shape(of, cut, part);
      const Index row = cut.row(s, part);
      const KeysAndValues seen(all.row_block(0, shape.k_length));
      work.ops().attention_forward(shape, chunk_of(of.q, row, cut), seen.k, seen.v,
                                   chunk_of(of.document_start, row, cut), chunk_of(out, row, cut),
                                   statistics_of(log_sum_exp, row, of, cut), work.stream());
    }
  }
}

void all_gather_backward(const ContextLink& link, const AttentionOperands& of,
                         const AttentionGradients& gradients, const Workplace& work) {
  const Zigzag& cut = link.cut;
  const ArenaMatrix all = work.arena.matrix(of.k.dtype, cut.whole_length(), 2 * of.k.cols);
  const ArenaMatrix partial = work.arena.matrix(DType::f32, all.rows, all.cols);
  const Index width = of.k.cols;
  for (Index s = 0; s < of.shape.sequences; ++s) {
    gather_sequence(link, of, s, all, work);
    work.ops().fill_zero({partial.data, partial.dtype, partial.rows * partial.cols}, work.stream());
    for (const int part : Zigzag::kParts) {
      const AttentionShape shape = prefix_shape(of, cut, part);
      const Index row = cut.row(s, part);
      const KeysAndValues seen(all.row_block(0, shape.k_length));
      const Matrix sums = partial.row_block(0, shape.k_length);
      work.ops().attention_backward(
          shape, chunk_of(of.q, row, cut), seen.k, seen.v, chunk_of(gradients.out, row, cut),
          statistics_of(gradients.log_sum_exp, row, of, cut), chunk_of(of.document_start, row, cut),
          chunk_of(gradients.dout, row, cut), chunk_of(gradients.dq, row, cut), false,
          sums.col_block(0, width), sums.col_block(width, width), true, work.stream());
    }
    sum_to_owners(link, partial, neighbouring(gradients.dk, gradients.dv), s, work);
  }
}

}  // namespace cartan::model
