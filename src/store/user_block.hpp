// The first 512 bytes of a checkpoint: the HDF5 user block. It is written last, so it is the closing mark,
// and it is checked first, so that the HDF5 library never parses a damaged description (hostile metadata can
// crash it).
//
//   cartan checkpoint, format 1
//   ...
//   file_bytes 1234567
//   tensors_begin 8192
//   head_hash 0123456789abcdef
//
// The head is everything else before the first tensor: HDF5's own structures, /state, /tensors, /checksums.
// With the checksums of the tensors every byte of the file is covered.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace cartan::store {

inline constexpr std::size_t kUserBlockBytes = 512;
inline constexpr int kFormatVersion = 1;

struct UserBlock {
  std::uint64_t file_bytes = 0;
  std::uint64_t tensors_begin = 0;
  std::uint64_t head_hash = 0;  ///< XXH3 of the bytes [kUserBlockBytes, tensors_begin)
};

using UserBlockBytes = std::array<std::byte, kUserBlockBytes>;

UserBlockBytes encode(const UserBlock& block);
/// Throws DataError that names `path`: not a checkpoint, never finished, of a newer format, damaged.
/// `start` is the beginning of the file, up to kUserBlockBytes + 8 bytes of it.
UserBlock decode_user_block(std::span<const std::byte> start, const std::filesystem::path& path);

}  // namespace cartan::store
