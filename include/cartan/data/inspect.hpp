// What is in a token file, for `cartan inspect`.
#pragma once

#include <optional>

#include "cartan/core/json_fwd.hpp"
#include "cartan/data/indexed_dataset.hpp"

namespace cartan::data {

/// What a pass over all tokens and documents finds.
struct DatasetScan {
  std::int32_t min_id = 0, max_id = 0;  ///< 0 if there are no tokens
  Index empty_documents = 0;
  Index longest_document = 0;  ///< tokens
  Index counted_tokens = 0;    ///< with a mask
};

/// Reads every token. Throws DataError for a value that is no token id, or not below `vocab_size` if given.
DatasetScan verify(const IndexedDataset& dataset, std::optional<Index> vocab_size = std::nullopt);

/// Counts, type and sizes; with `scan`, what it found too.
Json describe(const IndexedDataset& dataset, const std::optional<DatasetScan>& scan = std::nullopt);

}  // namespace cartan::data
