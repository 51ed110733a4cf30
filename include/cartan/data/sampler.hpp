// From the number of a sample to its tokens. A sample is a window of seq + 1 tokens of a corpus's documents
// laid end to end; sample k of an epoch covers the tokens [k * seq, k * seq + seq]. Of instruction data,
// whose documents are not cut, it is a row of packed documents (packing.hpp). The order is a function of
// (seed, epoch, number) alone, computed by a keyed permutation: nothing but a packing is built or stored, and
// nothing is different on another rank.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cartan/core/types.hpp"
#include "cartan/data/batch.hpp"
#include "cartan/data/indexed_dataset.hpp"
#include "cartan/data/mixture.hpp"
#include "cartan/data/packing.hpp"

namespace cartan::data {

/// Consecutive tokens of a dataset (whole documents), and how often they are drawn.
struct Corpus {
  std::shared_ptr<const IndexedDataset> dataset;
  IndexRange tokens;
  /// Any unit; 0 in all corpora: in proportion to their samples, so that each is seen once an epoch.
  std::uint64_t weight = 0;
};

struct SamplerOptions {
  Index seq = 256;
  std::uint64_t seed = 1234;
  bool shuffle = true;   ///< false: windows in stored order, the same in every epoch
  Index vocab_size = 0;  ///< an id at or beyond it is an error when it is read
};

/// Immutable; all members may be called by several threads.
class Sampler {
 public:
  /// Packs corpora with a mask. Throws DataError for a corpus that is empty or without a target that counts,
  /// and ConfigError for one too small for a sample.
  Sampler(std::vector<Corpus> corpora, SamplerOptions options);

  const SamplerOptions& options() const { return options_; }
  const std::vector<Corpus>& corpora() const { return corpora_; }
  /// Samples in one epoch of a corpus: windows, where the last tokens, fewer than seq, are in none; or rows.
  Index samples_of(Index corpus) const { return samples_[static_cast<std::size_t>(corpus)]; }
  /// Sum over all corpora.
  Index samples() const;

  /// The rows of a corpus of instruction data; null for others.
  const Packing* packing(Index corpus) const { return packings_[static_cast<std::size_t>(corpus)].get(); }

  struct Location {
    Index corpus = 0;
    Index epoch = 0;        ///< of this corpus; each has its own
    Index first_token = 0;  ///< in the dataset; of packed documents: of the first one
    Index number = 0;       ///< of the window or row, in stored order
    friend bool operator==(const Location&, const Location&) = default;
  };
  /// Where a sample of the endless sequence 0, 1, 2, ... lies.
  Location locate(Index sample) const;

  /// Reads samples into the rows of `batch`, whose arrays are reused. Throws DataError for an id outside the
  /// vocabulary, naming file, document and position.
  void fill(std::span<const Index> samples, Batch& batch) const;

 private:
  struct Row;  // of a batch
  void fill_window(const Location& location, const Row& row) const;
  void fill_packed(const Location& location, const Row& row) const;

  std::vector<Corpus> corpora_;
  SamplerOptions options_;
  std::vector<std::shared_ptr<const Packing>> packings_;
  std::vector<Index> samples_;
  Mixture mixture_;
};

}  // namespace cartan::data
