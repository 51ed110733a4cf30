// Byte-pair merges (Sennrich et al. 2016, arXiv:1508.07909): a table from a pair of ids to its rank and the
// id of the whole, and the merging of a piece. Of all neighbours the pair of the lowest rank is joined first,
// of equal ones the leftmost.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace cartan::data::bpe {

class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank;
    std::int32_t id;
  };
  /// Room for `merges`.
  explicit MergeTable(std::size_t merges = 0);
  /// A pair that comes again gets the later rank.
  void add(std::int32_t left, std::int32_t right, Merge merge);
  /// Null if the pair is not joined.
  const Merge* find(std::int32_t left, std::int32_t right) const;

  /// Joins neighbours in `ids` until no pair is left that can be. O(n log n), and O(n^2) with a small factor
  /// for pieces of a few dozen ids.
  void apply(std::vector<std::int32_t>& ids) const;

  /// The two ways of apply(), for any length.
  void apply_by_scanning(std::vector<std::int32_t>& ids) const;
  void apply_by_heap(std::vector<std::int32_t>& ids) const;

 private:
  struct Slot {
    std::uint64_t pair;
    Merge merge;
  };
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  static std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t slot_of(std::uint64_t pair) const;

  std::vector<Slot> slots_;  ///< a power of two, at most half of them taken
  int shift_;
};

}  // namespace cartan::data::bpe
