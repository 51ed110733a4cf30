// Builds without Apache Arrow.
#include "parquet.hpp"

#include "cartan/core/error.hpp"
#include "cartan/data/tokenize.hpp"

namespace cartan::data {

struct ParquetFile::Reader {};

ParquetFile::ParquetFile(const std::string& path, std::string_view) {
  throw ConfigError(
      "{}: this cartan is built without Apache Arrow, which reads Parquet files: build it with "
      "CARTAN_WITH_ARROW=ON (spack: cartan+arrow), or write JSON lines instead",
      path);
}
ParquetFile::~ParquetFile() = default;
bool ParquetFile::holds_ids() const { return false; }
void ParquetFile::for_each_batch(Index, const std::function<void(ParquetRows&&)>&) {}
std::string parquet_library() { return {}; }

}  // namespace cartan::data
