// Documents in a Parquet file, read with Apache Arrow's C++ library where cartan is built with it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cartan/core/types.hpp"

namespace cartan::data {

/// Some consecutive rows: texts, or ids.
struct ParquetRows {
  Index first_row = 0;  ///< of the file
  std::vector<std::string> texts = {};
  std::vector<std::vector<std::int64_t>> ids = {}, labels = {};
  bool has_labels = false;
};

class ParquetFile {
 public:
  /// Reads the column `json_key` of strings; where there is none, the column input_ids of lists of integers,
  /// and labels beside it. Throws IoError, DataError for other files and types of these columns, ConfigError
  /// where cartan is built without Arrow.
  ParquetFile(const std::string& path, std::string_view json_key);
  ~ParquetFile();
  ParquetFile(const ParquetFile&) = delete;
  ParquetFile& operator=(const ParquetFile&) = delete;

  bool holds_ids() const;
  /// Calls `visit` with all rows in order, some `chunk_bytes` of content at a time. What is in memory at once
  /// is that, and one column chunk of a row group as the file has it. A null is an empty text. Throws
  /// IoError, DataError.
  void for_each_batch(Index chunk_bytes, const std::function<void(ParquetRows&&)>& visit);

 private:
  struct Reader;
  std::unique_ptr<Reader> reader_;
};

}  // namespace cartan::data
