// What all communicators share: how a vector is cut into chunks, and exact sums.
#include "cartan/comm/communicator.hpp"

#include <algorithm>

#include "cartan/core/narrow.hpp"
#include "comm/reduction.hpp"

namespace cartan::comm {
LeafRange chunk_range(Index count, int rank, int size, int shard) {
  // Chunk numbers go through the replicas of a place in the shard first: their chunks then make up the
  // place's.
  const int number = shard == 0 ? rank : rank % shard * (size / shard) + rank / shard;
  const LeafRange blocks = leaf_range(ceil_div(count, device::kSumBlock), number, size);
  return {std::min(blocks.begin * device::kSumBlock, count), std::min(blocks.end * device::kSumBlock, count)};
}

device::Event Communicator::library_reduce_scatter(std::span<float>, int, device::Stream&) {
  throw InternalError("{} has no library that sums", name());
}

device::Event Communicator::library_all_reduce(std::span<float>, device::Stream&) {
  throw InternalError("{} has no library that sums", name());
}

int slots_for(const CanonicalTree& tree, int size) {
  return std::max(1, plan_reduction({tree.leaves(), {0, tree.leaves()}, 1, 0, size}).most_slots());
}

void sum_exactly(Communicator& comm, std::span<ExactSum> sums) {
  std::vector<std::int64_t> words;
  for (ExactSum& sum : sums) words.insert(words.end(), sum.words().begin(), sum.words().end());
  comm.sum(words);
  auto next = words.begin();
  for (ExactSum& sum : sums)
    for (std::int64_t& word : sum.words()) word = *next++;
}

}  // namespace cartan::comm
