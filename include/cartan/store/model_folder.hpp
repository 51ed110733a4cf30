// A Hugging Face folder: config.json and the parameters in *.safetensors, one file or several with an index.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cartan/model/parameters.hpp"
#include "cartan/store/safetensors.hpp"

namespace cartan::store {

/// A tensor of the files and the parameters whose rows it holds, one after another: some families keep q, k
/// and v in one, and gate and up.
struct FileTensor {
  std::string name;
  std::vector<Index> shape;
  struct Part {
    std::string parameter;
    Index first = 0;  ///< element of the tensor
  };
  std::vector<Part> parts;

  Index elements() const;
};
/// In the order of the forward pass, as the family of the model names them.
std::vector<FileTensor> file_tensors(const model::ModelConfig& config);

bool is_model_folder(const std::filesystem::path& path);

class ModelFolder {
 public:
  /// Reads config.json and what the files say that they hold. Throws MissingError, IoError, or DataError with
  /// everything that is missing, surplus or misshapen.
  explicit ModelFolder(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const model::ModelConfig& config() const { return config_; }
  /// In the files.
  DType dtype_of(const std::string& parameter) const { return place_of(parameter).tensor->dtype; }
  /// Reads elements [first, first + count) of a parameter as fp32, from fp32, bf16 or fp16. Touches no other
  /// part of the files. Several threads may read at once.
  void read(const std::string& parameter, Index first, Index count, float* out) const;

 private:
  struct Place {
    const NamedTensor* tensor;
    Index first;
  };
  /// Throws InternalError if there is none.
  const Place& place_of(const std::string& parameter) const;

  std::filesystem::path path_;
  model::ModelConfig config_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string, Place> places_;  ///< by parameter
};

}  // namespace cartan::store
