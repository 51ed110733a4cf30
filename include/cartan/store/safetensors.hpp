// The safetensors format: 8 bytes little-endian header length, a JSON header with dtype, shape and byte range
// of each tensor, then the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cartan/core/file.hpp"
#include "cartan/core/types.hpp"

namespace cartan::store {

struct NamedTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<Index> shape;
  std::span<const std::byte> bytes;  ///< row-major, little-endian
};

/// Elements [first, first + count) of a tensor as float (fp32, bf16, fp16, fp64, int32, int64). Throws
/// DataError for other types.
void read_floats(const NamedTensor& tensor, Index first, Index count, float* out);

/// What a file begins with: length, and names, types and shapes of tensors that follow without gaps; their
/// bytes are not looked at. `format`, where given, is said in the metadata.
std::string safetensors_header(std::span<const NamedTensor> tensors, const std::string& format = {});

/// Writes a file atomically. Throws IoError.
void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors);

/// A file mapped read-only.
class SafetensorsFile {
 public:
  /// Throws MissingError, IoError, or DataError that says what is wrong: a header that does not fit the file,
  /// an unknown dtype, a name twice, ranges that do not match the shapes or overlap.
  explicit SafetensorsFile(const std::filesystem::path& path);
  const std::vector<NamedTensor>& tensors() const { return tensors_; }
  bool contains(const std::string& name) const;
  /// Throws DataError.
  const NamedTensor& tensor(const std::string& name) const;
  /// All elements, by read_floats.
  std::vector<float> floats(const std::string& name) const;
  /// Elements of an int32 or int64 tensor. Throws DataError where one does not fit.
  std::vector<std::int32_t> integers(const std::string& name) const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::vector<NamedTensor> tensors_;
  std::unordered_map<std::string, std::size_t> numbers_;  ///< of the tensors, by name
};

}  // namespace cartan::store
