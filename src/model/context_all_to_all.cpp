// Context parallelism by all-to-all (Jacobs et al. 2023, arXiv:2309.14509): rows of all heads become whole
// sequences of a part of the heads, attention runs as on one rank, and its result goes back to rows. Where
// there are fewer key/value heads than ranks, neighbouring ranks get the same one and its gradients are
// summed. Sequences go one after the other, so that scratch is that of one.
#include <algorithm>
#include <array>

#include "model/context_exchange.hpp"

namespace cartan::model {

using device::ArenaMatrix;
using device::ConstMatrix;
using device::Matrix;
using device::Vector;

namespace {

/// What this rank attends to.
struct OwnHeads {
  Index heads, kv_heads;  ///< of each rank
  int sharers;            ///< neighbouring ranks with the same key/value head

  OwnHeads(const AttentionOperands& of, int ranks)
      : heads(of.heads / ranks),
        kv_heads(std::max<Index>(of.kv_heads / ranks, 1)),
        sharers(narrow<int>(std::max<Index>(ranks / of.kv_heads, 1))) {
    if (heads * ranks != of.heads || kv_heads * ranks != of.kv_heads * sharers)
      throw InternalError("{} heads and {} key/value heads cannot be distributed over {} ranks", of.heads,
                          of.kv_heads, ranks);
  }
};

/// A matrix of own rows, all heads: rank r gets the heads from r * all / ranks.
struct HeadColumns {
  ConstMatrix rows;
  Index all, each;  ///< heads in all and of each rank

  Index width() const { return rows.cols / all * each; }
  Index first_column(int rank, int ranks) const { return rows.cols / all * (rank * all / ranks); }
};

/// The own heads of one whole sequence, the columns of `pieces` side by side.
ArenaMatrix rows_to_heads(const ContextLink& link, std::span<const HeadColumns> pieces, Index sequence,
                          const Workplace& work) {
  const Zigzag& cut = link.cut;
  const Index length = cut.own_length();
  Index width = 0;
  for (const HeadColumns& piece : pieces) width += piece.width();
  const DType dtype = pieces.front().rows.dtype;
  const ArenaMatrix received = work.arena.matrix(dtype, cut.whole_length(), width);
  {
    const ArenaMatrix sent = work.arena.matrix(dtype, cut.whole_length(), width);
    for (int r = 0; r < cut.ranks; ++r) {
      const Matrix block = sent.row_block(r * length, length);
      Index column = 0;
      for (const HeadColumns& piece : pieces) {
        work.ops().copy(piece.rows.row_block(sequence * length, length)
                            .col_block(piece.first_column(r, cut.ranks), piece.width()),
                        block.col_block(column, piece.width()), work.stream());
        column += piece.width();
      }
    }
    link.comm.all_to_all(bytes_of(sent), bytes_of(received), work.stream());
  }
  ArenaMatrix whole = work.arena.matrix(dtype, cut.whole_length(), width);
  for (int r = 0; r < cut.ranks; ++r) {
    for (const int part : Zigzag::kParts)
      work.ops().copy(chunk_of(received, cut.row(r, part), cut), chunk_of(whole, cut.position(r, part), cut),
                      work.stream());
  }
  return whole;
}

/// The own rows of what every rank has for a whole sequence: those of rank 0 first.
ArenaMatrix heads_to_rows(const ContextLink& link, const Matrix& whole, const Workplace& work) {
  const Zigzag& cut = link.cut;
  ArenaMatrix received = work.arena.matrix(whole.dtype, whole.rows, whole.cols);
  const ArenaMatrix sent = work.arena.matrix(whole.dtype, whole.rows, whole.cols);
  for (int r = 0; r < cut.ranks; ++r) {
    for (const int part : Zigzag::kParts)
      work.ops().copy(chunk_of(whole, cut.position(r, part), cut), chunk_of(sent, cut.row(r, part), cut),
                      work.stream());
  }
  link.comm.all_to_all(bytes_of(sent), bytes_of(received), work.stream());
  return received;
}

/// Writes the own rows of a sequence from what `heads_to_rows` brought. Where `sharers` neighbouring ranks
/// have the same heads, their parts are summed in the order of ranks.
void place_heads(const Zigzag& cut, const Matrix& received, Index first_column, Index width, int sharers,
                 const Matrix& rows, Index sequence, const Workplace& work) {
  const Index length = cut.own_length();
  const Matrix own = rows.row_block(sequence * length, length);
  for (int group = 0; group < cut.ranks / sharers; ++group) {
    const Matrix parts = received.row_block(group * sharers * length, sharers * length);
    work.ops().sum_parts(parts.col_block(first_column, width), sharers, {},
                         own.col_block(group * width, width), work.stream());
  }
}

device::AttentionShape own_shape(const AttentionOperands& of, const Zigzag& cut, const OwnHeads& own) {
  device::AttentionShape shape = attention_shape(of, 0, cut.whole_length(), 0, cut.whole_length());
  shape.heads = own.heads;
  shape.kv_heads = own.kv_heads;
  return shape;
}

std::span<const std::int32_t> whole_document_start(const AttentionOperands& of, const Zigzag& cut,
                                                   Index sequence) {
  return of.all_document_start.subspan(narrow<std::size_t>(sequence * cut.whole_length()),
                                       narrow<std::size_t>(cut.whole_length()));
}

}  // namespace

// log_sum_exp keeps the distribution over heads: sequence by sequence, all rows of the own heads.

void all_to_all_forward(const ContextLink& link, const AttentionOperands& of, Matrix out, Vector log_sum_exp,
                        const Workplace& work) {
  const Zigzag& cut = link.cut;
  const OwnHeads own(of, cut.ranks);
  const std::array<HeadColumns, 3> pieces{
      {{of.q, of.heads, own.heads}, {of.k, of.kv_heads, own.kv_heads}, {of.v, of.kv_heads, own.kv_heads}}};
  const Index q_width = pieces[0].width(), kv_width = pieces[1].width(), rows = cut.whole_length();
  for (Index s = 0; s < of.shape.sequences; ++s) {
    ArenaMatrix qkv = rows_to_heads(link, pieces, s, work);
    const ArenaMatrix attended = work.arena.matrix(out.dtype, rows, q_width);
    const Vector statistics =
        log_sum_exp.data == nullptr ? Vector{} : log_sum_exp.slice(s * rows * own.heads, rows * own.heads);
    work.ops().attention_forward(own_shape(of, cut, own), qkv.col_block(0, q_width),
                                 qkv.col_block(q_width, kv_width),
                                 qkv.col_block(q_width + kv_width, kv_width),
                                 whole_document_start(of, cut, s), attended, statistics, work.stream());
    qkv.reset();
    place_heads(cut, heads_to_rows(link, attended, work), 0, q_width, 1, out, s, work);
  }
}

void all_to_all_backward(const ContextLink& link, const AttentionOperands& of,
                         const AttentionGradients& gradients, const Workplace& work) {
  const Zigzag& cut = link.cut;
  const OwnHeads own(of, cut.ranks);
  const std::array<HeadColumns, 5> pieces{{{of.q, of.heads, own.heads},
                                           {gradients.out, of.heads, own.heads},
                                           {gradients.dout, of.heads, own.heads},
                                           {of.k, of.kv_heads, own.kv_heads},
                                           {of.v, of.kv_heads, own.kv_heads}}};
  const Index q_width = pieces[0].width(), kv_width = pieces[3].width(), rows = cut.whole_length();
  for (Index s = 0; s < of.shape.sequences; ++s) {
    ArenaMatrix whole = rows_to_heads(link, pieces, s, work);
    const auto q_piece = [&](Index number) { return whole.col_block(number * q_width, q_width); };
    ArenaMatrix dq = work.arena.matrix(gradients.dq.dtype, rows, q_width);
    // What is summed over ranks stays fp32 until then.
    const ArenaMatrix dkv =
        work.arena.matrix(own.sharers > 1 ? DType::f32 : gradients.dk.dtype, rows, 2 * kv_width);
    work.ops().attention_backward(own_shape(of, cut, own), q_piece(0), whole.col_block(3 * q_width, kv_width),
                                  whole.col_block(3 * q_width + kv_width, kv_width), q_piece(1),
                                  gradients.log_sum_exp.slice(s * rows * own.heads, rows * own.heads),
                                  whole_document_start(of, cut, s), q_piece(2), dq, false,
                                  dkv.col_block(0, kv_width), dkv.col_block(kv_width, kv_width), false,
                                  work.stream());
    whole.reset();
    place_heads(cut, heads_to_rows(link, dq, work), 0, q_width, 1, gradients.dq, s, work);
    dq.reset();
    const ArenaMatrix received = heads_to_rows(link, dkv, work);
    place_heads(cut, received, 0, kv_width, own.sharers, gradients.dk, s, work);
    place_heads(cut, received, kv_width, kv_width, own.sharers, gradients.dv, s, work);
  }
}

}  // namespace cartan::model
