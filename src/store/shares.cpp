#include "shares.hpp"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "cartan/core/error.hpp"

namespace cartan::store {
namespace {

/// Comes before each fragment in a message.
struct FragmentHeader {
  Index block;
  std::uint64_t begin, bytes;
};

void sort_fragments(std::vector<Fragment>& fragments) {
  std::sort(fragments.begin(), fragments.end(), [](const Fragment& a, const Fragment& b) {
    return std::tie(a.block, a.begin) < std::tie(b.block, b.begin);
  });
}

/// Those that belong to the blocks of a range.
std::span<const Fragment> fragments_of(const Shares& shares, LeafRange blocks) {
  const auto before = [](const Fragment& fragment, Index block) { return fragment.block < block; };
  const auto begin = std::lower_bound(shares.fragments.begin(), shares.fragments.end(), blocks.begin, before);
  return {begin, std::lower_bound(begin, shares.fragments.end(), blocks.end, before)};
}

std::vector<Fragment> unpack_fragments(std::span<const std::byte> messages) {
  std::vector<Fragment> fragments;
  while (!messages.empty()) {
    FragmentHeader header{};
    std::memcpy(&header, messages.data(), sizeof header);
    fragments.push_back({header.block, header.begin, header.bytes, messages.data() + sizeof header});
    messages = messages.subspan(sizeof header + header.bytes);
  }
  sort_fragments(fragments);
  return fragments;
}

void check_slab(const Slab& slab, std::span<const TensorInfo> tensors) {
  if (slab.tensor >= tensors.size())
    throw InternalError("a slab of tensor number {} of {}", slab.tensor, tensors.size());
  const TensorInfo& tensor = tensors[slab.tensor];
  if (slab.first < 0 || slab.count < 0 || slab.first > tensor.elements() - slab.count)
    throw InternalError("a slab of {} holds elements [{}, {}) of {}", tensor.path, slab.first,
                        slab.first + slab.count, tensor.elements());
}

void split_slab(const TensorInfo& tensor, const BlockTable& table, const Slab& slab, Shares& shares) {
  const std::size_t element = size_of(tensor.dtype);
  const auto tensor_bytes = tensor.bytes();
  const auto* data = static_cast<const std::byte*>(slab.data);
  const std::size_t begin = static_cast<std::size_t>(slab.first) * element;
  const std::size_t end = static_cast<std::size_t>(slab.first + slab.count) * element;
  for (std::size_t at = begin; at < end;) {
    const std::size_t in_block = at % kBlockBytes;
    const Index block = table.first_block(slab.tensor) + static_cast<Index>(at / kBlockBytes);
    const std::size_t block_end = std::min(at - in_block + kBlockBytes, tensor_bytes);
    const std::size_t bytes = std::min(block_end, end) - at;
    if (in_block != 0 || at + bytes != block_end)
      shares.fragments.push_back({block, in_block, bytes, data});
    else if (at != begin && !shares.whole.empty() && shares.whole.back().count < kLargestRun &&
             shares.whole.back().ends_before(block, data))
      ++shares.whole.back().count;
    else
      shares.whole.push_back({block, 1, data});
    at += bytes;
    data += bytes;
  }
}

}  // namespace

Shares split_slabs(std::span<const TensorInfo> tensors, const BlockTable& table,
                   std::span<const Slab> slabs) {
  Shares shares;
  for (const Slab& slab : slabs) {
    check_slab(slab, tensors);
    if (slab.count > 0) split_slab(tensors[slab.tensor], table, slab, shares);
  }
  std::sort(shares.whole.begin(), shares.whole.end(),
            [](const BlockRun& a, const BlockRun& b) { return a.first < b.first; });
  // Overlaps with other ranks show when checksums meet; MPI-IO may not see a rank write the same place twice.
  for (std::size_t i = 1; i < shares.whole.size(); ++i) {
    const BlockRun &before = shares.whole[i - 1], &run = shares.whole[i];
    if (before.first + before.count <= run.first) continue;
    const Block block = table.block(run.first);
    throw InternalError("{} are in several slabs", name_range(tensors, table, block.begin, block.bytes));
  }
  sort_fragments(shares.fragments);
  return shares;
}

LeafRange owned_blocks(const BlockTable& table, int rank, int ranks, Index round, Index rounds) {
  const LeafRange all = leaf_range(table.blocks(), rank, ranks);
  const LeafRange part = leaf_range(all.end - all.begin, round, rounds);
  return {all.begin + part.begin, all.begin + part.end};
}

std::vector<std::int64_t> message_bytes(const Shares& shares, const BlockTable& table, int ranks,
                                        Index rounds) {
  std::vector<std::int64_t> bytes;
  for (int owner = 0; owner < ranks; ++owner)
    for (Index round = 0; round < rounds; ++round) {
      bytes.push_back(0);
      for (const Fragment& fragment : fragments_of(shares, owned_blocks(table, owner, ranks, round, rounds)))
        bytes.back() += static_cast<std::int64_t>(sizeof(FragmentHeader) + fragment.bytes);
    }
  return bytes;
}

Outgoing pack_fragments(const Shares& shares, const BlockTable& table, int ranks, Index round, Index rounds,
                        RoundMemory& memory) {
  std::vector<std::span<const Fragment>> parts;
  Outgoing out;
  std::size_t total = 0;
  for (int owner = 0; owner < ranks; ++owner) {
    parts.push_back(fragments_of(shares, owned_blocks(table, owner, ranks, round, rounds)));
    std::size_t bytes = 0;
    for (const Fragment& fragment : parts.back()) bytes += sizeof(FragmentHeader) + fragment.bytes;
    out.counts.push_back(static_cast<std::int64_t>(bytes));
    total += bytes;
  }
  const std::span<std::byte> bytes = memory.take(total);
  std::byte* next = bytes.data();
  for (const auto& part : parts)
    for (const Fragment& fragment : part) {
      const FragmentHeader header{fragment.block, fragment.begin, fragment.bytes};
      std::memcpy(next, &header, sizeof header);
      std::memcpy(next + sizeof header, fragment.data, fragment.bytes);
      next += sizeof header + fragment.bytes;
    }
  out.bytes = bytes;
  return out;
}

AssembledBlocks::AssembledBlocks(std::span<const TensorInfo> tensors, const BlockTable& table,
                                 std::span<const std::byte> messages, RoundMemory& room) {
  const std::vector<Fragment> fragments = unpack_fragments(messages);
  std::size_t total = 0;
  for (std::size_t i = 0; i < fragments.size(); ++i)
    if (i == 0 || fragments[i].block != fragments[i - 1].block)
      total += table.block(fragments[i].block).bytes;
  std::byte* memory = room.take(total).data();
  for (std::size_t i = 0; i < fragments.size();) {
    const Index number = fragments[i].block;
    const Block block = table.block(number);
    const auto fail = [&](const char* what, std::size_t begin, std::size_t end) {
      throw InternalError("{} {}", name_range(tensors, table, block.begin + begin, end - begin), what);
    };
    std::size_t covered = 0;
    for (; i < fragments.size() && fragments[i].block == number; ++i) {
      const Fragment& part = fragments[i];
      if (part.begin > covered) fail("are in no rank's slabs", covered, part.begin);
      if (part.begin < covered)
        fail("are in several slabs", part.begin, std::min(covered, part.begin + part.bytes));
      std::memcpy(memory + part.begin, part.data, part.bytes);
      covered += part.bytes;
    }
    if (covered < block.bytes) fail("are in no rank's slabs", covered, block.bytes);
    if (!runs_.empty() && runs_.back().first + runs_.back().count == number)
      ++runs_.back().count;
    else
      runs_.push_back({number, 1, memory});
    memory += block.bytes;
  }
}

}  // namespace cartan::store
