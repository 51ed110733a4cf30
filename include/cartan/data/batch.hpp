// What the model is fed: whole sequences of equal length, with the documents packed in them marked.
#pragma once

#include <cstdint>
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
  Index counted_targets = 0;                 ///< targets that are not ignored

  friend bool operator==(const Batch&, const Batch&) = default;
};

}  // namespace cartan::data
