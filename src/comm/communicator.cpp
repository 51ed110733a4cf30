// What all communicators share: how a vector is cut into chunks, and the canonical sum of one value a leaf.
#include "cartan/comm/communicator.hpp"

#include <algorithm>
#include <cstring>

#include "cartan/core/narrow.hpp"
#include "comm/local/local_communicator.hpp"
#include "comm/reduction.hpp"

namespace cartan::comm {
namespace {

/// A stack as a message. The number of entries depends on the tree alone, so both sides know the size.
struct StackEntry {
  std::int64_t level = -1;  ///< -1: not used
  std::int64_t index = 0;
  double value = 0;
};

/// A contiguous range of leaves has at most two maximal nodes on each level.
std::size_t most_entries(const CanonicalTree& tree) {
  std::size_t levels = 1;
  while ((Index{1} << (levels - 1)) < tree.leaves()) ++levels;
  return 2 * levels;
}

std::vector<StackEntry> pack(const CanonicalSum<double>& sum, std::size_t entries) {
  std::vector<StackEntry> packed(entries);
  CARTAN_ASSERT(sum.nodes().size() <= entries);
  for (std::size_t i = 0; i < sum.nodes().size(); ++i) {
    packed[i] = {sum.nodes()[i].level, sum.nodes()[i].index, sum.values()[i]};
  }
  return packed;
}

void push_all(CanonicalSum<double>& sum, const std::vector<StackEntry>& packed) {
  for (const StackEntry& entry : packed) {
    if (entry.level < 0) break;
    sum.push({static_cast<int>(entry.level), entry.index}, entry.value);
  }
}

bool covers_all(const CanonicalTree& tree, const std::vector<TreeNode>& stack) {
  return stack.size() == 1 && tree.first_leaf(stack[0]) == 0 && tree.end_leaf(stack[0]) == tree.leaves();
}

}  // namespace

LeafRange chunk_range(Index count, int rank, int size) {
  const LeafRange blocks = leaf_range(ceil_div(count, device::kSumBlock), rank, size);
  return {std::min(blocks.begin * device::kSumBlock, count), std::min(blocks.end * device::kSumBlock, count)};
}

int slots_for(const CanonicalTree& tree, int size) {
  return std::max(1, plan_reduction(tree, size).most_slots());
}

double canonical_sum(Communicator& comm, const CanonicalTree& tree, const std::vector<TreeNode>& nodes,
                     const std::vector<double>& values) {
  CARTAN_ASSERT(nodes.size() == values.size());
  if (const auto* local = dynamic_cast<LocalCommunicator*>(&comm); local != nullptr && local->imagined()) {
    // The other ranks' leaves do not exist, and the number does not matter.
    double sum = 0;
    for (double value : values) sum += value;
    return sum;
  }
  CanonicalSum<double> sum(tree.leaves());
  for (std::size_t i = 0; i < nodes.size(); ++i) sum.push(nodes[i], values[i]);

  // A binomial tree over ranks: the holder of ranks [r, r + width) takes over [r + width, r + 2 width), so
  // each stack covers a contiguous range of leaves.
  const std::size_t entries = most_entries(tree);
  for (int width = 1; width < comm.size(); width *= 2) {
    if (comm.rank() % (2 * width) != 0) {
      const auto packed = pack(sum, entries);
      comm.send_host(std::as_bytes(std::span(packed)), comm.rank() - width);
      break;
    }
    if (comm.rank() + width >= comm.size()) continue;
    std::vector<StackEntry> received(entries);
    comm.receive_host(std::as_writable_bytes(std::span(received)), comm.rank() + width);
    push_all(sum, received);
  }

  struct Outcome {
    double total = 0;
    std::int64_t is_complete = 0;
  } outcome;
  if (comm.rank() == 0 && covers_all(tree, sum.nodes())) outcome = {sum.total(), 1};
  comm.broadcast_host(std::as_writable_bytes(std::span(&outcome, 1)), 0);
  if (outcome.is_complete == 0) {
    throw InternalError("canonical sum on {}: the ranks do not hold the {} leaves once each, in rank order",
                        comm.name(), tree.leaves());
  }
  return outcome.total;
}

}  // namespace cartan::comm
