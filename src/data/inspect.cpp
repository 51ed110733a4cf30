// One pass in pieces, so that a dataset of any size is read with little memory.
#include "cartan/data/inspect.hpp"
#include "cartan/core/json.hpp"

#include <algorithm>
#include <vector>

namespace cartan::data {

DatasetScan verify(const IndexedDataset& dataset, std::optional<Index> vocab_size) {
  constexpr Index kChunk = 1 << 16;
  DatasetScan scan;
  std::vector<std::int32_t> ids;
  for (Index first = 0; first < dataset.tokens(); first += kChunk) {
    ids.resize(static_cast<std::size_t>(std::min(kChunk, dataset.tokens() - first)));
    if (vocab_size)
      dataset.read_tokens(first, ids, *vocab_size);
    else
      dataset.read_tokens(first, ids);
    const auto [min, max] = std::minmax_element(ids.begin(), ids.end());
    scan.min_id = first == 0 ? *min : std::min(scan.min_id, *min);
    scan.max_id = std::max(scan.max_id, *max);
  }
  if (dataset.has_mask())
    for (Index t = 0; t < dataset.tokens(); ++t) scan.counted_tokens += dataset.is_counted(t) ? 1 : 0;
  for (Index document = 0; document < dataset.documents(); ++document) {
    const Index size = dataset.document_tokens(document).size();
    if (size == 0) ++scan.empty_documents;
    scan.longest_document = std::max(scan.longest_document, size);
  }
  return scan;
}

Json describe(const IndexedDataset& dataset, const std::optional<DatasetScan>& scan) {
  Json json;
  json["kind"] = "dataset";
  json["prefix"] = dataset.prefix();
  json["format"] = dataset.format();
  json["documents"] = dataset.documents();
  json["sequences"] = dataset.sequences();
  json["tokens"] = dataset.tokens();
  json["dtype"] = name_of(dataset.token_type());
  json["modes"] = dataset.has_modes();
  json["samples"] = dataset.has_mask();
  json["bin_bytes"] = dataset.bin_bytes();
  json["idx_bytes"] = dataset.idx_bytes();
  if (scan) {
    json["min_id"] = scan->min_id;
    json["max_id"] = scan->max_id;
    json["empty_documents"] = scan->empty_documents;
    json["longest_document"] = scan->longest_document;
    if (dataset.has_mask()) json["counted_tokens"] = scan->counted_tokens;
  }
  return json;
}

}  // namespace cartan::data
