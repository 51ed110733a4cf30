#include "blocks.hpp"

#include <algorithm>
#include <set>
#include <string_view>

#include "cartan/core/error.hpp"
#include "cartan/core/text.hpp"

namespace cartan::store {
namespace {

constexpr std::uint64_t kLargest = std::uint64_t{1} << 62;

/// Bytes of a tensor, with every product checked.
std::uint64_t checked_bytes(const TensorInfo& tensor) {
  std::uint64_t bytes = size_of(tensor.dtype);
  for (const Index extent : tensor.shape) {
    if (extent < 0) throw InternalError("tensor {} has the negative extent {}", tensor.path, extent);
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes) || bytes > kLargest)
      throw InternalError("tensor {} is too large for a file", tensor.path);
  }
  return bytes;
}

void check_path(const std::string& path) {
  const auto parts = split(path, '/');
  const auto bad = [](std::string_view part) { return part.empty() || part == "." || part == ".."; };
  const bool control = std::any_of(path.begin(), path.end(), [](unsigned char c) { return c < 0x20; });
  if (parts.size() < 2 || std::any_of(parts.begin(), parts.end(), bad) || control)
    throw InternalError("\"{}\" is no path of a tensor: expected FOLDER/NAME", path);
}

}  // namespace

Index TensorInfo::elements() const {
  Index product = 1;
  for (const Index extent : shape) product *= extent;
  return product;
}

BlockTable::BlockTable(std::span<const TensorInfo> tensors) {
  std::set<std::string_view> seen;
  std::uint64_t position = 0;
  Index block = 0;
  for (const TensorInfo& tensor : tensors) {
    check_path(tensor.path);
    if (!seen.insert(tensor.path).second) throw InternalError("tensor {} is listed twice", tensor.path);
    begin_.push_back(position);
    first_block_.push_back(block);
    const std::uint64_t bytes = checked_bytes(tensor);
    position += bytes;
    if (position > kLargest) throw InternalError("tensor {} is too large for a file", tensor.path);
    block += static_cast<Index>((bytes + kBlockBytes - 1) / kBlockBytes);
  }
  begin_.push_back(position);
  first_block_.push_back(block);
}

Block BlockTable::block(Index number) const {
  const auto after = std::upper_bound(first_block_.begin(), first_block_.end(), number);
  const auto tensor = static_cast<std::size_t>(after - first_block_.begin()) - 1;
  const std::uint64_t begin =
      begin_[tensor] + static_cast<std::uint64_t>(number - first_block_[tensor]) * kBlockBytes;
  const std::uint64_t end = std::min<std::uint64_t>(begin + kBlockBytes, begin_[tensor + 1]);
  return {tensor, begin, static_cast<std::size_t>(end - begin)};
}

std::uint64_t BlockTable::block_begin(Index number) const {
  return number == blocks() ? total_bytes() : block(number).begin;
}

std::string name_range(std::span<const TensorInfo> tensors, const BlockTable& table, std::uint64_t position,
                       std::size_t bytes) {
  // The last tensor that begins at or before the position: tensors without elements share their position.
  std::size_t tensor = tensors.size();
  while (tensor > 0 && table.tensor_begin(tensor - 1) > position) --tensor;
  CARTAN_ASSERT(tensor > 0);
  --tensor;
  const std::size_t size = size_of(tensors[tensor].dtype);
  const std::uint64_t first = (position - table.tensor_begin(tensor)) / size;
  return fmt::format("{}, elements [{}, {})", tensors[tensor].path, first, first + (bytes + size - 1) / size);
}

}  // namespace cartan::store
