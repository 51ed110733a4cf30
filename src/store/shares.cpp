#include "shares.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>

#include "cartan/core/error.hpp"

namespace cartan::store {
namespace {

/// Comes before each fragment in a message.
struct FragmentHeader {
  Index block;
  std::uint32_t begin, bytes;
};
static_assert(kBlockBytes <= std::numeric_limits<std::uint32_t>::max());

bool comes_before(const Fragment& a, const Fragment& b) {
  return std::tie(a.block, a.begin) < std::tie(b.block, b.begin);
}

/// Sorts what consists of a few sorted parts.
void merge_sorted_parts(std::vector<Fragment>& fragments) {
  std::vector<std::ptrdiff_t> starts{0};
  for (std::ptrdiff_t i = 1; i < std::ssize(fragments); ++i)
    if (comes_before(fragments[static_cast<std::size_t>(i)], fragments[static_cast<std::size_t>(i) - 1]))
      starts.push_back(i);
  starts.push_back(std::ssize(fragments));
  for (; starts.size() > 2;) {  // neighbours in pairs
    std::vector<std::ptrdiff_t> merged;
    for (std::size_t i = 0; i + 1 < starts.size(); i += 2) {
      merged.push_back(starts[i]);
      if (i + 2 < starts.size())
        std::inplace_merge(fragments.begin() + starts[i], fragments.begin() + starts[i + 1],
                           fragments.begin() + starts[i + 2], comes_before);
    }
    merged.push_back(starts.back());
    starts = std::move(merged);
  }
}

std::size_t packed_bytes(const Fragment& fragment, Payload payload) {
  return sizeof(FragmentHeader) + (payload == Payload::data ? fragment.bytes : 0);
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
  shares.fragments.reserve(slabs.size());  // columns: most slabs are shorter than a block
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
  merge_sorted_parts(shares.fragments);
  return shares;
}

LeafRange owned_blocks(const BlockTable& table, int rank, int ranks, Index round, Index rounds) {
  const LeafRange all = leaf_range(table.blocks(), rank, ranks);
  const LeafRange part = leaf_range(all.end - all.begin, round, rounds);
  return {all.begin + part.begin, all.begin + part.end};
}

std::span<const Fragment> fragments_of(const Shares& shares, LeafRange blocks) {
  const auto before = [](const Fragment& fragment, Index block) { return fragment.block < block; };
  const auto begin = std::lower_bound(shares.fragments.begin(), shares.fragments.end(), blocks.begin, before);
  return {begin, std::lower_bound(begin, shares.fragments.end(), blocks.end, before)};
}

std::vector<std::int64_t> message_bytes(const Shares& shares, const BlockTable& table, int ranks,
                                        Index rounds, Payload payload) {
  std::vector<std::int64_t> bytes;
  for (int owner = 0; owner < ranks; ++owner)
    for (Index round = 0; round < rounds; ++round) {
      bytes.push_back(0);
      for (const Fragment& fragment : fragments_of(shares, owned_blocks(table, owner, ranks, round, rounds)))
        bytes.back() += static_cast<std::int64_t>(packed_bytes(fragment, payload));
    }
  return bytes;
}

Outgoing pack_fragments(const Shares& shares, const BlockTable& table, int ranks, Index round, Index rounds,
                        Payload payload, RoundMemory& memory) {
  std::vector<std::span<const Fragment>> parts;
  Outgoing out;
  std::size_t total = 0;
  for (int owner = 0; owner < ranks; ++owner) {
    parts.push_back(fragments_of(shares, owned_blocks(table, owner, ranks, round, rounds)));
    std::size_t bytes = 0;
    for (const Fragment& fragment : parts.back()) bytes += packed_bytes(fragment, payload);
    out.counts.push_back(static_cast<std::int64_t>(bytes));
    total += bytes;
  }
  const std::span<std::byte> bytes = memory.take(total);
  std::byte* next = bytes.data();
  for (const auto& part : parts)
    for (const Fragment& fragment : part) {
      const FragmentHeader header{fragment.block, static_cast<std::uint32_t>(fragment.begin),
                                  static_cast<std::uint32_t>(fragment.bytes)};
      std::memcpy(next, &header, sizeof header);
      if (payload == Payload::data) std::memcpy(next + sizeof header, fragment.data, fragment.bytes);
      next += packed_bytes(fragment, payload);
    }
  out.bytes = bytes;
  return out;
}

std::vector<Fragment> unpack_fragments(std::span<const std::byte> messages, Payload payload) {
  std::vector<Fragment> fragments;
  while (!messages.empty()) {
    FragmentHeader header{};
    std::memcpy(&header, messages.data(), sizeof header);
    fragments.push_back({header.block, header.begin, header.bytes,
                         payload == Payload::data ? messages.data() + sizeof header : nullptr});
    messages = messages.subspan(packed_bytes(fragments.back(), payload));
  }
  merge_sorted_parts(fragments);
  return fragments;
}

std::vector<Index> complete_blocks(std::span<const TensorInfo> tensors, const BlockTable& table,
                                   std::span<const Fragment> fragments) {
  std::vector<Index> blocks;
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
      covered += part.bytes;
    }
    if (covered < block.bytes) fail("are in no rank's slabs", covered, block.bytes);
    blocks.push_back(number);
  }
  return blocks;
}

void append_block(std::vector<BlockRun>& runs, Index block, const std::byte* data) {
  if (!runs.empty() && runs.back().count < kLargestRun && runs.back().ends_before(block, data))
    ++runs.back().count;
  else
    runs.push_back({block, 1, data});
}

std::vector<BlockRun> assemble_blocks(std::span<const TensorInfo> tensors, const BlockTable& table,
                                      std::span<const Fragment> fragments, RoundMemory& memory) {
  const std::vector<Index> blocks = complete_blocks(tensors, table, fragments);
  std::size_t total = 0;
  for (const Index number : blocks) total += table.block(number).bytes;
  std::byte* next = memory.take(total).data();
  std::vector<BlockRun> runs;
  auto fragment = fragments.begin();
  for (const Index number : blocks) {
    for (; fragment != fragments.end() && fragment->block == number; ++fragment)
      std::memcpy(next + fragment->begin, fragment->data, fragment->bytes);
    append_block(runs, number, next);
    next += table.block(number).bytes;
  }
  return runs;
}

}  // namespace cartan::store
