// Adapters in the layout of Hugging Face's PEFT: adapter_config.json and adapter_model.safetensors.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "cartan/model/config.hpp"
#include "cartan/store/model_folder_writer.hpp"
#include "cartan/store/safetensors.hpp"

namespace cartan::store {

/// Whether a folder holds adapters and no model of its own.
bool is_adapter_folder(const std::filesystem::path& path);

class AdapterFolder {
 public:
  /// Reads what the files say that they hold. Throws MissingError, IoError, or DataError that lists every
  /// entry of adapter_config.json that changes the mathematics in a way that cartan does not follow, and
  /// every tensor that belongs to no adapter of a linear layer.
  explicit AdapterFolder(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  /// Rank, alpha, dropout; the targets are those that have tensors.
  const model::LoraConfig& lora() const { return lora_; }
  /// The model that they belong to, as the file names it: a folder or a name; may be empty.
  const std::string& base() const { return base_; }
  /// Throws DataError that lists what is missing, surplus or misshapen for this model, which has adapters.
  void check(const model::ModelConfig& config) const;
  bool has(const std::string& parameter) const;
  /// Reads elements [first, first + count) of an adapter's matrix as fp32.
  void read(const std::string& parameter, Index first, Index count, float* out) const;

 private:
  std::filesystem::path path_;
  SafetensorsFile file_;
  model::LoraConfig lora_;
  std::string base_;
};

/// Writes the adapters of `config` in fp32, with `base` as the name of their model, and the tokenizer files
/// that options name. What the folder holds of other adapters or models is replaced. For one rank. Throws
/// ConfigError for a model whose files join the layers that adapters are of (phi3), and for a folder that is
/// not empty, as options say; IoError.
FolderReport write_adapter_folder(const std::filesystem::path& folder, const model::ModelConfig& config,
                                  const std::string& base, const ReadParameter& read,
                                  const FolderOptions& options);

}  // namespace cartan::store
