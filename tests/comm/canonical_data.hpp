// Numbers whose sum depends on the order: leaves of a vector with mixed signs and magnitudes, the stacks that
// ranks hold, and the serial sum that every mesh must reproduce bit by bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "cartan/core/canonical_tree.hpp"
#include "cartan/core/random.hpp"
#include "support/canonical_sum.hpp"

namespace cartan::comm {

/// A vector with the operator that CanonicalSum needs.
struct Values {
  std::vector<float> of;
  friend Values operator+(const Values& a, const Values& b) {
    Values sum = a;
    for (std::size_t i = 0; i < sum.of.size(); ++i) sum.of[i] = a.of[i] + b.of[i];
    return sum;
  }
};

inline Values leaf_values(Index leaf, Index count) {
  const RandomStream random(7, static_cast<std::uint64_t>(leaf));
  Values values{std::vector<float>(static_cast<std::size_t>(count))};
  for (Index i = 0; i < count; ++i) {
    const double u = random.uniform(static_cast<std::uint64_t>(i));
    values.of[static_cast<std::size_t>(i)] =
        static_cast<float>(std::ldexp(u - 0.5, static_cast<int>(u * 4096) % 24));
  }
  return values;
}

/// The leaves of rank `rank` of `size`, summed as far as they can be.
inline CanonicalSum<Values> stack_of(Index leaves, int rank, int size, Index count) {
  CanonicalSum<Values> sum(leaves);
  const LeafRange range = leaf_range(leaves, rank, size);
  for (Index leaf = range.begin; leaf < range.end; ++leaf) sum.push_leaf(leaf, leaf_values(leaf, count));
  return sum;
}

inline std::vector<float> serial_sum(Index leaves, Index count) {
  return stack_of(leaves, 0, 1, count).total().of;
}

}  // namespace cartan::comm
