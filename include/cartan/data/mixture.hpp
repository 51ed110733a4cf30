// Which corpus a sample comes from, as a pure function of the sample's number: no random draws, no table, no
// state. Corpora are the leaves of a binary tree; at each node the first i samples are divided in the ratio
// of the weights, rounded to a whole number in exact integer arithmetic, as in a Beatty sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cartan/core/types.hpp"

namespace cartan::data {

/// Among the first i samples each corpus has its share i * weight / sum, within one sample for up to three
/// corpora, and for any number within 1.7. (Each node adds half a sample, scaled down by the weights below
/// it. In Huffman's tree these grow at least like Fibonacci's numbers: (1 + 1 + 1/2 + 1/3 + 1/5 + ...) / 2
/// < 1.7.)
class Mixture {
 public:
  /// Weights above 0 whose sum is below 2^62; at least one.
  explicit Mixture(std::span<const std::uint64_t> weights);

  struct Choice {
    Index corpus = 0;
    Index number = 0;  ///< how many samples before this one came from the same corpus
    friend bool operator==(const Choice&, const Choice&) = default;
  };
  /// The corpus of a sample. O(depth of the tree).
  Choice operator()(Index sample) const;

 private:
  struct Node {
    std::uint64_t weight = 0;
    Index left = -1, right = -1;  ///< nodes below; -1 in a leaf, whose number is that of its corpus
  };
  std::vector<Node> nodes_;  ///< leaves first, the root last
};

}  // namespace cartan::data
