// Attention to a cache of keys and values that is cut over the ranks of a context group: each has the queries
// and sees its own keys; what it saw travels, which is as much as the queries, however long the text is.
#include "model/context_exchange.hpp"

namespace cartan::model {

using device::Matrix;
using device::Vector;

void ContextGroup::attend_to_parts(Index heads, const AttendHere& attend, Matrix out,
                                   const Workplace& work) const {
  if (is_alone()) {
    attend(out, {});
    return;
  }
  // Of each rank a row, at a multiple of 256 bytes: what it saw, then the log-sum-exp.
  const Index seen = out.rows * out.cols, statistics = out.rows * heads;
  const device::ArenaMatrix parts = work.arena.matrix(DType::f32, size(), round_up(seen + statistics, 64));
  const auto row = [&](int of_rank) { return parts.row_block(of_rank, 1); };
  const auto out_of = [&](int of_rank) {
    return device::as_matrix(row(of_rank).data, DType::f32, out.rows, out.cols);
  };
  const auto statistics_of = [&](int of_rank) {
    return Vector{device::advance(row(of_rank).data, DType::f32, seen), DType::f32, statistics};
  };
  attend(out_of(rank()), statistics_of(rank()));
  std::vector<comm::ByteView> rows;
  rows.reserve(narrow<std::size_t>(size()));
  for (int r = 0; r < size(); ++r) rows.push_back(bytes_of(row(r)));
  comm_->all_gather_parts(std::move(rows), work.stream());
  for (int r = 1; r < size(); ++r)
    work.ops().attention_merge(out_of(0), statistics_of(0), out_of(r), statistics_of(r), out.cols / heads,
                               work.stream());
  work.ops().copy(out_of(0), out, work.stream());
}

}  // namespace cartan::model
