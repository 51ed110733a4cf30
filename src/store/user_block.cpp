#include "user_block.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "cartan/core/error.hpp"

namespace cartan::store {
namespace {

constexpr std::string_view kMagic = "cartan checkpoint, format ";
constexpr std::string_view kHdf5Signature = "\x89HDF\r\n\x1a\n";

constexpr const char* kScan =
    "cartan checkpoint, format %d\n"
    "An HDF5 file: h5ls, h5dump and h5py read it.\n"
    "file_bytes %" SCNu64 "\ntensors_begin %" SCNu64 "\nhead_hash %" SCNx64;

}  // namespace

UserBlockBytes encode(const UserBlock& block) {
  const std::string text = fmt::format(
      "cartan checkpoint, format {}\nAn HDF5 file: h5ls, h5dump and h5py read it.\n"
      "file_bytes {}\ntensors_begin {}\nhead_hash {:016x}\n",
      kFormatVersion, block.file_bytes, block.tensors_begin, block.head_hash);
  UserBlockBytes bytes{};
  CARTAN_ASSERT(text.size() < bytes.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

UserBlock decode_user_block(std::span<const std::byte> start, const std::filesystem::path& path) {
  const std::string_view text(reinterpret_cast<const char*>(start.data()), start.size());
  if (text.empty()) throw DataError("{}: an empty file, not a checkpoint", path.string());
  if (text.starts_with(kHdf5Signature))
    throw DataError("{}: an HDF5 file, but not a checkpoint of cartan", path.string());
  const auto zeros = std::min(text.find_first_not_of('\0'), text.size());
  if (zeros >= kUserBlockBytes || zeros == text.size())
    throw DataError("{}: a checkpoint that was never finished (no closing mark)", path.string());
  if (!text.starts_with(kMagic)) throw DataError("{}: not a checkpoint of cartan", path.string());
  if (text.size() < kUserBlockBytes)
    throw DataError("{}: truncated: only {} bytes are left", path.string(), text.size());

  const std::string line(text.substr(0, kUserBlockBytes));
  int version = 0;
  UserBlock block;
  const int fields =
      std::sscanf(line.c_str(), kScan, &version, &block.file_bytes, &block.tensors_begin, &block.head_hash);
  if (fields >= 1 && version > kFormatVersion)
    throw DataError("{}: checkpoint format {}, but this cartan reads up to {}: use a newer cartan",
                    path.string(), version, kFormatVersion);
  // Written again from what was read, the block must be the same to the byte: so each damage shows, here or
  // in the size and the hash that it names.
  if (fields != 4 || std::memcmp(encode(block).data(), start.data(), kUserBlockBytes) != 0)
    throw DataError("{}: damaged: its first {} bytes are not what was written", path.string(),
                    kUserBlockBytes);
  return block;
}

}  // namespace cartan::store
