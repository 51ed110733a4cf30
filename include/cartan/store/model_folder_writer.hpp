// Writes a model as a Hugging Face folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "cartan/comm/communicator.hpp"
#include "cartan/model/config.hpp"

namespace cartan::store {

struct FolderOptions {
  DType dtype = DType::bf16;                 ///< fp32 | bf16 | fp16
  std::uint64_t most_bytes = 5'000'000'000;  ///< of the tensors of a file; a single one may be larger
  bool overwrite = false;                    ///< a folder that is not empty may be there
  /// A folder whose tokenizer and settings of generation are passed on; empty: none.
  std::filesystem::path tokenizer_from;
};

/// Reads elements [first, first + count) of a parameter as fp32; from several ranks at once.
using ReadParameter = std::function<void(const std::string& parameter, Index first, Index count, float* out)>;

struct FolderReport {
  std::uint64_t bytes = 0;
  int files = 0;
};

/// Writes config.json, generation_config.json, the parameters in one file or in several with an index, and
/// what options.tokenizer_from has of a tokenizer. Ranks share the work, 32 MiB at a time; every rank must be
/// able to read all parameters. Nothing has its final name before all of it is on disk. Collective over
/// `comm`: throws on every rank or on none; ConfigError for a model that no family describes, and for a
/// folder that is not empty; DataError for a parameter that does not fit into fp16; IoError.
FolderReport write_model_folder(const std::filesystem::path& folder, const model::ModelConfig& config,
                                const ReadParameter& read, const FolderOptions& options,
                                comm::Communicator& comm);

}  // namespace cartan::store
