// What the model is fed: whole sequences of equal length, with the documents packed in them marked.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "cartan/core/types.hpp"

namespace cartan::data {

/// A target that does not count in the loss.
inline constexpr std::int32_t kIgnoredTarget = -100;

/// B sequences of T tokens, all arrays [B * T], row after row.
struct Batch {
  Index sequences = 0;                       ///< B
  Index seq = 0;                             ///< T
  std::vector<std::int32_t> tokens;          ///< input ids
  std::vector<std::int32_t> targets;         ///< the next token of the same document, or kIgnoredTarget
  std::vector<std::int32_t> positions;       ///< place in the document, or in the part of it in this row
  std::vector<std::int32_t> document_start;  ///< token t of a row attends to [document_start[t], t] of it
  std::vector<std::int32_t> window_start;    ///< the same in layers with a window; empty without such layers
  std::vector<std::int32_t> row_numbers{};   ///< in the global batch; empty without dropout

  friend bool operator==(const Batch&, const Batch&) = default;
};

/// Fills window_start for windows of `window` tokens; 0: leaves it empty.
inline void set_window(Batch& batch, Index window) {
  batch.window_start.clear();
  if (window == 0) return;
  batch.window_start.reserve(batch.positions.size());
  for (std::size_t i = 0; i < batch.positions.size(); ++i)
    batch.window_start.push_back(batch.document_start[i] + static_cast<std::int32_t>(std::max<Index>(
                                                               0, batch.positions[i] + 1 - window)));
}

/// Targets that count in the loss.
inline Index counted_targets(std::span<const std::int32_t> targets) {
  return std::count_if(targets.begin(), targets.end(), [](std::int32_t target) { return target >= 0; });
}

}  // namespace cartan::data
