// Finds the keys that each tile sees.
#include "device/cpu/attention_layout.hpp"

#include <limits>

namespace cartan::device::cpu {

void check_document_starts(const AttentionCall& call) {
  const AttentionShape& shape = call.shape;
  for (Index token = 0; token < std::ssize(call.document_start); ++token) {
    const Index query = token % shape.q_length;
    const Index position = shape.q_first + query;
    const Index start = call.document_start[static_cast<std::size_t>(token)];
    if (start < 0 || start > position) {
      throw InternalError("attention: query {} of sequence {} stands at {}, but its document starts at {}",
                          query, token / shape.q_length, position, start);
    }
  }
}

TileKeys tile_keys(const AttentionCall& call, HeadGroup at, Index tile) {
  TileKeys keys;
  keys.first_row = tile * kTileRows;
  keys.rows = std::min(kTileRows, call.rows() - keys.first_row);
  keys.lanes = round_up(keys.rows, kLaneStep);
  keys.first_key = keys.common_end = call.key_end();
  keys.start.fill(std::numeric_limits<std::int32_t>::max());
  keys.last.fill(-1);
  RowWalk row(call, at, keys.first_row);
  for (Index i = 0; i < keys.rows; ++i, row.next()) {
    const Index start =
        std::max<Index>(call.document_start[static_cast<std::size_t>(row.token())], call.shape.k_first);
    const Index end = std::min(call.shape.q_first + row.query() + 1, call.key_end());
    keys.start[static_cast<std::size_t>(i)] = narrow<std::int32_t>(start);
    keys.last[static_cast<std::size_t>(i)] = narrow<std::int32_t>(end - 1);
    if (start < end) {
      keys.first_key = std::min(keys.first_key, start);
      keys.end_key = std::max(keys.end_key, end);
    }
    // A row that sees nothing leaves no key to all: its start is not before its end.
    keys.common_first_key = std::max(keys.common_first_key, start);
    keys.common_end = std::min(keys.common_end, end);
  }
  return keys;
}

}  // namespace cartan::device::cpu
