// The head of a checkpoint: user block, HDF5's structures, /state, /tensors and /checksums; the tensors'
// values follow.
//
// Rank 0 lets HDF5 lay out the whole file as a sparse file in memory and takes its first bytes; every dataset
// has its place then, and ranks write values straight to their positions. Why not by H5Dwrite: HDF5 1.10
// cannot write many datasets by one call, so a model's thousand tensors are a thousand collective writes of
// several exchanges each (perf/checkpoint_io compares); a range of elements is no hyperslab; and a write or
// close that fails on one rank (disk full) leaves the library in a state that hangs or crashes the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "blocks.hpp"
#include "cartan/core/json.hpp"
#include "cartan/store/checkpoint.hpp"

namespace cartan::store {

class Head {
 public:
  /// Lays out the file. The user block stays empty until seal().
  Head(const Json& state, std::span<const TensorInfo> tensors, const BlockTable& table);

  /// Position of the first tensor's first byte in the file.
  std::uint64_t tensors_begin() const { return bytes_.size(); }
  /// Fills in the checksums and the user block. `checksums` holds one value a block.
  void seal(std::span<const std::uint64_t> checksums, std::uint64_t file_bytes);
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  std::uint64_t checksums_at_ = 0;
};

/// What a reader learns from the head.
struct HeadContent {
  std::uint64_t file_bytes = 0;
  std::uint64_t tensors_begin = 0;
  Json state;
  std::vector<TensorInfo> tensors;
  std::vector<std::uint64_t> checksums;  ///< one a block of BlockTable(tensors)
};
/// Checks the head of the open file and reads it. Throws DataError or IoError that names `path`.
HeadContent read_head(int fd, const std::filesystem::path& path);

}  // namespace cartan::store
