// Where each byte of each tensor lies in the file, and the blocks that checksums are taken of: plain
// arithmetic over the list of tensors, the same on every rank and in every reader.
//
// Tensors follow each other without gaps in the order of the list. Each is cut into blocks of kBlockBytes
// (its last one may be shorter), numbered through all tensors. Positions here count from the first tensor's
// first byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cartan/core/types.hpp"
#include "cartan/store/checkpoint.hpp"

namespace cartan::store {

inline constexpr std::size_t kBlockBytes = std::size_t{256} << 10;

struct Block {
  std::size_t tensor = 0;
  std::uint64_t begin = 0;  ///< position
  std::size_t bytes = 0;
};

class BlockTable {
 public:
  /// Throws InternalError: a path that is empty, doubled or malformed, a negative extent, a size beyond 2^62
  /// bytes.
  explicit BlockTable(std::span<const TensorInfo> tensors);

  std::uint64_t total_bytes() const { return begin_.back(); }
  Index blocks() const { return first_block_.back(); }
  std::uint64_t tensor_begin(std::size_t tensor) const { return begin_[tensor]; }
  std::uint64_t tensor_end(std::size_t tensor) const { return begin_[tensor + 1]; }
  /// Number of the tensor's first block; of the next tensor's if it has none.
  Index first_block(std::size_t tensor) const { return first_block_[tensor]; }
  Block block(Index number) const;
  /// Position of the block's first byte; total_bytes() for number == blocks().
  std::uint64_t block_begin(Index number) const;

 private:
  std::vector<std::uint64_t> begin_;  // one more than tensors
  std::vector<Index> first_block_;    // one more than tensors
};

/// "model/norm.weight, elements [10, 20)": what lies in `bytes` bytes from `position` on.
std::string name_range(std::span<const TensorInfo> tensors, const BlockTable& table, std::uint64_t position,
                       std::size_t bytes);

}  // namespace cartan::store
