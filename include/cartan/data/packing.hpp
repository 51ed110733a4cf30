// Packing of samples that are not cut: several in one sequence, each seeing only itself. Which samples share
// a sequence is found once for all epochs, from the lengths and a seed alone, so that every rank finds the
// same. Source: best fit decreasing, as in Krell, Kosec, Perez, Fitzgibbon 2021, arXiv:2107.02027.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cartan/core/types.hpp"
#include "cartan/data/indexed_dataset.hpp"

namespace cartan::data {

/// Samples, sequence after sequence. A sample of n tokens takes n - 1 places: its last token is a target
/// only.
struct Packing {
  std::vector<Index> samples;       ///< documents of the dataset
  std::vector<Index> row_begin{0};  ///< row r holds samples [row_begin[r], row_begin[r + 1])
  Index places = 0;                 ///< of tokens, in all rows
  Index cut = 0;                    ///< samples longer than a sequence, of which the first part is used
  Index left_out = 0;  ///< samples that are not there: no token that counts, or all of those cut away

  Index rows() const { return static_cast<Index>(row_begin.size()) - 1; }
  std::span<const Index> row(Index number) const;
};

/// "900 samples in 100 sequences, 98.7 % of their places filled", and what is cut or left out.
std::string to_string(const Packing& packing, Index seq);

/// Places that a document takes in a sequence of `seq` tokens: all but its last token, or the first `seq`.
Index packed_places(const IndexedDataset& dataset, Index document, Index seq);

/// Packs the documents [first, end) of a dataset with a mask.
///   shuffle  best fit, the longest samples first, equally long ones in random order
///   else     each row takes the next samples in stored order while they fit
/// Memory: 8 bytes for each sample and row, five times as much while it is made.
Packing pack(const IndexedDataset& dataset, IndexRange documents, Index seq, bool shuffle,
             std::uint64_t seed);

}  // namespace cartan::data
