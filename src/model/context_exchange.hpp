// What the three exchanges of context parallelism share: how the zigzag cut lies in whole sequences, the
// streams that messages travel on, and attention of a piece of a sequence. One file each holds the ring, the
// all-gather and the all-to-all.
#pragma once

#include "cartan/core/narrow.hpp"
#include "cartan/model/context_group.hpp"

namespace cartan::model {

/// Streams for messages that travel while the device computes.
struct ContextStreams {
  std::unique_ptr<device::Stream> sending, receiving;
};

/// Of a sequence's 2 * ranks chunks of `chunk_rows` rows, rank r holds r as its part 0 and 2 * ranks - 1 - r
/// as its part 1.
struct Zigzag {
  int rank = 0, ranks = 1;
  Index chunk_rows = 0;

  /// Throws InternalError where the rows of a rank are no two chunks.
  Zigzag(const comm::Communicator& comm, device::SequenceShape own);

  static constexpr int kParts[] = {0, 1};
  Index own_length() const { return 2 * chunk_rows; }
  Index whole_length() const { return ranks * own_length(); }
  Index chunk(int of_rank, int part) const { return part == 0 ? of_rank : 2 * ranks - 1 - of_rank; }
  /// Of its first row in the whole sequence.
  Index position(int of_rank, int part) const { return chunk(of_rank, part) * chunk_rows; }
  /// First row of a part in a matrix of a rank's rows.
  Index row(Index sequence, int part) const { return (2 * sequence + part) * chunk_rows; }
};

/// The group as an exchange sees it. Without streams of their own messages wait for computing and it for
/// them.
struct ContextLink {
  comm::Communicator& comm;
  ContextStreams* streams;
  Zigzag cut;
};

/// What the backward pass takes and gives besides the operands.
struct AttentionGradients {
  device::ConstMatrix out;
  device::ConstVector log_sum_exp;
  device::ConstMatrix dout;
  device::Matrix dq, dk, dv;
};

void ring_forward(const ContextLink& link, const AttentionOperands& of, device::Matrix out,
                  device::Vector log_sum_exp, const Workplace& work);
void ring_backward(const ContextLink& link, const AttentionOperands& of, const AttentionGradients& gradients,
                   const Workplace& work);
void all_gather_forward(const ContextLink& link, const AttentionOperands& of, device::Matrix out,
                        device::Vector log_sum_exp, const Workplace& work);
void all_gather_backward(const ContextLink& link, const AttentionOperands& of,
                         const AttentionGradients& gradients, const Workplace& work);
void all_to_all_forward(const ContextLink& link, const AttentionOperands& of, device::Matrix out,
                        device::Vector log_sum_exp, const Workplace& work);
void all_to_all_backward(const ContextLink& link, const AttentionOperands& of,
                         const AttentionGradients& gradients, const Workplace& work);

/// Attention of consecutive rows of one sequence with consecutive keys of it.
device::AttentionShape attention_shape(const AttentionOperands& of, Index q_first, Index q_length,
                                       Index k_first, Index k_length);

// Of one chunk of this rank's rows.
inline std::span<const std::int32_t> chunk_of(std::span<const std::int32_t> rows, Index first,
                                              const Zigzag& cut) {
  return rows.subspan(narrow<std::size_t>(first), narrow<std::size_t>(cut.chunk_rows));
}
inline device::Matrix chunk_of(const device::Matrix& rows, Index first, const Zigzag& cut) {
  return rows.row_block(first, cut.chunk_rows);
}
inline device::ConstMatrix chunk_of(const device::ConstMatrix& rows, Index first, const Zigzag& cut) {
  return rows.row_block(first, cut.chunk_rows);
}
/// A row has one statistic a head.
template <class V>
V statistics_of(const V& statistics, Index first, const AttentionOperands& of, const Zigzag& cut) {
  return statistics.data == nullptr ? V{} : statistics.slice(first * of.heads, cut.chunk_rows * of.heads);
}

/// Keys and values in neighbouring columns, as they travel.
struct KeysAndValues {
  device::ConstMatrix k, v;

  explicit KeysAndValues(const device::ConstMatrix& both)
      : k(both.col_block(0, both.cols / 2)), v(both.col_block(both.cols / 2, both.cols / 2)) {}
};

/// The matrix of which dk and dv are the columns.
device::Matrix neighbouring(const device::Matrix& dk, const device::Matrix& dv);

/// Of a contiguous matrix.
inline comm::ByteView bytes_of(const device::Matrix& m) {
  CARTAN_ASSERT(m.stride == m.cols);
  return {static_cast<std::byte*>(m.data), narrow<std::size_t>(m.rows * m.cols) * size_of(m.dtype)};
}

}  // namespace cartan::model
