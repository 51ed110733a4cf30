// Bytes that each rank sends, counted alike by a real and by an imagined group, against numbers worked out by
// hand.
#include "comm/traffic.hpp"

#include <gtest/gtest.h>

#include "cartan/comm/mesh_groups.hpp"
#include "ways.hpp"

namespace cartan::comm {
namespace {

class Traffic : public EachWay {
 protected:
  Traffic() { imagined_.push_back(Mesh::imagined({1, comm_.size(), 1, 1}, comm_.rank())); }

  std::uint64_t others() const { return static_cast<std::uint64_t>(comm_.size() - 1); }
  std::size_t size() const { return static_cast<std::size_t>(comm_.size()); }
  std::size_t rank() const { return static_cast<std::size_t>(comm_.rank()); }
  ByteView bytes(std::size_t count) {
    return operand((count + sizeof(float) - 1) / sizeof(float)).bytes().first(count);
  }

  /// Runs `call` on both groups; both must count `expected` more bytes, in the record of the call too.
  template <class Call>
  void expect_sent(std::uint64_t expected, Call&& call) {
    for (Communicator* comm : {static_cast<Communicator*>(&comm_), &imagined_.front().data_plane()}) {
      const std::uint64_t before = comm->bytes_sent();
      run([&] { return call(*comm); });
      EXPECT_EQ(comm->bytes_sent() - before, expected) << comm->name();
      EXPECT_EQ(comm->recent_calls().back().sent, expected) << comm->name();
    }
  }
  void expect_sums(const PartialSums& sums, std::uint64_t nodes, std::uint64_t own, std::uint64_t count) {
    std::vector<float*> stack;
    for (int entry = 0; entry < 8; ++entry) stack.push_back(operand(own).data());
    expect_sent(4 * nodes * (count - own),
                [&](Communicator& comm) { return comm.reduce_scatter(sums, stack, *stream_); });
  }
  /// Slots without a value that matters.
  PartialSums sums_of(const CanonicalTree& tree, Index count) {
    PartialSums sums{&tree, {}, count};
    for (int slot = 0; slot < 4; ++slot)
      sums.slots.push_back(operand(static_cast<std::size_t>(count)).data());
    return sums;
  }

  // 5000 elements are blocks of 1024, the last one of 904; on 2 ranks 2 + 3 blocks, on 3 ranks 1 + 2 + 2, on
  // 4 ranks 1 + 1 + 1 + 2.
  static constexpr Index kCount = 5000;
  std::uint64_t chunk() const {
    static const std::vector<std::uint64_t> chunks[] = {
        {5000}, {2048, 2952}, {1024, 2048, 1928}, {1024, 1024, 1024, 1928}};
    return chunks[size() - 1][rank()];
  }

  std::vector<Mesh> imagined_;
};

TEST_P(Traffic, AGatherSendsThePartToEveryOther) {
  for (const std::size_t part : {0, 1, 4001}) {
    const ByteView in = bytes(part), out = bytes(part * size());
    expect_sent(others() * part, [&](Communicator& comm) { return comm.all_gather(in, out, *stream_); });
  }
}

TEST_P(Traffic, PartsCountByTheirOwnSizes) {
  std::vector<ByteView> parts;
  for (std::size_t r = 0; r < size(); ++r) parts.push_back(bytes(100 * r + 1));
  expect_sent(others() * (100 * rank() + 1),
              [&](Communicator& comm) { return comm.all_gather_parts(parts, *stream_); });
}

TEST_P(Traffic, AnExchangeSendsAllButTheOwnBlock) {
  const ByteView in = bytes(33 * size()), out = bytes(33 * size());
  expect_sent(33 * others(), [&](Communicator& comm) { return comm.all_to_all(in, out, *stream_); });
}

TEST_P(Traffic, OnlyTheRootOfABroadcastSends) {
  const ByteView data = bytes(777);
  for (int root = 0; root < comm_.size(); ++root) {
    expect_sent(comm_.rank() == root ? 777 * others() : 0,
                [&](Communicator& comm) { return comm.broadcast(data, root, *stream_); });
  }
}

TEST_P(Traffic, ASenderSendsAndAReceiverDoesNot) {
  const ByteView data = bytes(50);
  if (comm_.rank() + 1 < comm_.size())
    expect_sent(50, [&](Communicator& comm) { return comm.send(data, comm.rank() + 1, *stream_); });
  if (comm_.rank() > 0)
    expect_sent(0, [&](Communicator& comm) { return comm.receive(data, comm.rank() - 1, *stream_); });
}

TEST_P(Traffic, AReductionSendsTheNodesOfTheStackToTheOwners) {
  // Six leaves: on 2 ranks [0,3) and [3,6) are two nodes each; on 4 ranks [1,3) are two, the others one.
  const CanonicalTree tree(6);
  const std::vector<std::uint64_t> nodes[] = {{1}, {2, 2}, {1, 1, 1}, {1, 2, 1, 1}};
  const std::uint64_t held = nodes[size() - 1][rank()];
  const PartialSums sums = sums_of(tree, kCount);
  expect_sums(sums, held, chunk(), kCount);
  expect_sent(4 * held * (kCount - chunk()) + 4 * others() * chunk(),
              [&](Communicator& comm) { return comm.all_reduce(sums, *stream_); });
}

TEST_P(Traffic, RanksWithoutLeavesSendOnlyTheirSum) {
  const CanonicalTree tree(1);  // the last rank holds the leaf
  const PartialSums sums = sums_of(tree, kCount);
  const std::uint64_t held = rank() + 1 == size() ? 1 : 0;
  expect_sent(4 * held * (kCount - chunk()) + 4 * others() * chunk(),
              [&](Communicator& comm) { return comm.all_reduce(sums, *stream_); });
}

TEST_P(Traffic, AMicroBatchCountsTheLeavesItBrings) {
  // Leaves 2 ... 2 + 2n of a tree of 16: the first rank's two leaves are siblings, and so are the others'.
  const CanonicalTree tree(16);
  PartialSums sums = sums_of(tree, kCount);
  sums.leaves = LeafRange{2, 2 + 2 * comm_.size()};
  expect_sums(sums, 1, chunk(), kCount);
}

TEST_P(Traffic, PartsOfLeavesAreSentByEachPart) {
  if (comm_.size() % 2 != 0) GTEST_SKIP() << "two ranks share each leaf";
  const CanonicalTree tree(3);  // on two holders: one leaf, and two that are no siblings
  PartialSums sums = sums_of(tree, kCount);
  sums.parts = 2;
  const std::uint64_t held = comm_.size() == 2 ? 1 : rank() < 2 ? 1 : 2;
  expect_sums(sums, held, chunk(), kCount);
}

TEST_P(Traffic, ReplicasOfShardsOwnTheirChunks) {
  if (comm_.size() != 4) GTEST_SKIP() << "two groups of two shards";
  // Chunks in the order of ranks 0, 2, 1, 3, so that ranks 0 and 2 own the first half.
  const CanonicalTree tree(4);
  PartialSums sums = sums_of(tree, kCount);
  sums.shard = 2;
  expect_sums(sums, 1, comm_.rank() == 3 ? 1928 : 1024, kCount);
}

TEST_P(Traffic, SumsByTheLibraryCountAsIfTheyWereDirect) {
  if (!is_on_gpu(GetParam())) GTEST_SKIP() << "MPI's sums are not used";
  const auto data = operand(kCount);
  const std::span<float> view(data.data(), data.size());
  expect_sent(4 * (kCount - chunk()),
              [&](Communicator& comm) { return comm.library_reduce_scatter(view, 0, *stream_); });
  expect_sent(4 * (kCount - chunk()) + 4 * others() * chunk(),
              [&](Communicator& comm) { return comm.library_all_reduce(view, *stream_); });
  if (comm_.size() != 4) return;
  expect_sent(4 * (kCount - (comm_.rank() == 3 ? 1928 : 1024)),
              [&](Communicator& comm) { return comm.library_reduce_scatter(view, 2, *stream_); });
}

TEST_P(Traffic, OnlyGpusHaveALibraryThatSums) {
  if (is_on_gpu(GetParam())) GTEST_SKIP() << "they have";
  const auto data = operand(4);
  const std::span<float> view(data.data(), data.size());
  EXPECT_THROW(comm_.library_reduce_scatter(view, 0, *stream_), InternalError);
  EXPECT_THROW(comm_.library_all_reduce(view, *stream_), InternalError);
}

CARTAN_EACH_WAY(Traffic);

TEST(NodesOfRange, AreThoseOfTheStack) {
  for (Index leaves = 1; leaves <= 21; ++leaves) {
    const CanonicalTree tree(leaves);
    for (Index begin = 0; begin <= leaves; ++begin)
      for (Index end = begin; end <= leaves; ++end)
        ASSERT_EQ(nodes_of_range(tree, {begin, end}), std::ssize(tree.stack_of_range(begin, end)))
            << begin << " to " << end << " of " << leaves;
  }
}

}  // namespace
}  // namespace cartan::comm
