#include "store/blocks.hpp"

#include <gmock/gmock.h>

#include "checkpoint_data.hpp"
#include "store/shares.hpp"

namespace cartan::store {
namespace {

using cartan::testing::message_of;

const std::vector<TensorInfo> kTensors{{"m/a", DType::f32, {65536}},  // one block
                                       {"m/empty", DType::f32, {3, 0}},
                                       {"m/b", DType::bf16, {131073}},  // one block and 2 bytes
                                       {"m/c", DType::f32, {}}};

TEST(BlockTable, NumbersBlocksThroughAllTensors) {
  const BlockTable table(kTensors);
  EXPECT_EQ(table.blocks(), 4);
  EXPECT_EQ(table.total_bytes(), 262144u + 262146u + 4u);
  EXPECT_EQ(table.first_block(2), 1);
  EXPECT_EQ(table.block(1).tensor, 2u);
  EXPECT_EQ(table.block(1).bytes, kBlockBytes);
  EXPECT_EQ(table.block(2).bytes, 2u);
  EXPECT_EQ(table.block(3).begin, 524290u);
  EXPECT_EQ(table.block_begin(4), table.total_bytes());
}

TEST(BlockTable, HasNoBlocksWithoutElements) {
  EXPECT_EQ(BlockTable({}).blocks(), 0);
  const std::vector<TensorInfo> empty{{"m/a", DType::f32, {0}}};
  EXPECT_EQ(BlockTable(empty).blocks(), 0);
  EXPECT_EQ(BlockTable(empty).total_bytes(), 0u);
}

TEST(BlockTable, NamesElementsOfAPlace) {
  const BlockTable table(kTensors);
  EXPECT_EQ(name_range(kTensors, table, 262144 + 10, 4), "m/b, elements [5, 7)");
  EXPECT_EQ(name_range(kTensors, table, 524290, 4), "m/c, elements [0, 1)");
  EXPECT_EQ(name_range(kTensors, table, 0, 262144), "m/a, elements [0, 65536)");
}

TEST(BlockTable, RefusesListsThatCannotBeAFile) {
  const auto refuse = [](std::vector<TensorInfo> tensors) {
    return message_of<InternalError>([&] { BlockTable table(tensors); });
  };
  EXPECT_THAT(refuse({{"m/a", DType::f32, {1}}, {"m/a", DType::f32, {2}}}), ::testing::HasSubstr("m/a"));
  EXPECT_THAT(refuse({{"top", DType::f32, {1}}}), ::testing::HasSubstr("top"));
  for (const char* path : {"", "m//a", "/a", "m/", "m/../a", "m/a\n"}) refuse({{path, DType::f32, {1}}});
  EXPECT_THAT(refuse({{"m/a", DType::f32, {2, -1}}}), ::testing::HasSubstr("-1"));
  const Index large = Index{1} << 40;
  EXPECT_THAT(refuse({{"m/a", DType::f32, {large, large}}}), ::testing::HasSubstr("too large"));
}

TEST(Shares, CutSlabsAtBlocks) {
  const BlockTable table(kTensors);
  std::vector<std::byte> memory(600000);
  // Elements [1, 65536) of a: no whole block. All of b: a whole block and a short one. c.
  const std::vector<Slab> slabs{{2, 0, 131073, memory.data()},
                                {0, 1, 65535, memory.data()},
                                {3, 0, 1, memory.data()},
                                {1, 0, 0, nullptr}};
  const Shares shares = split_slabs(kTensors, table, slabs);
  ASSERT_EQ(shares.whole.size(), 2u);
  EXPECT_EQ(shares.whole[0].first, 1);
  EXPECT_EQ(shares.whole[0].count, 2);
  EXPECT_EQ(shares.whole[1].first, 3);
  ASSERT_EQ(shares.fragments.size(), 1u);
  EXPECT_EQ(shares.fragments[0].begin, 4u);
  EXPECT_EQ(shares.fragments[0].bytes, 262140u);
}

TEST(Shares, RefuseSlabsOutsideOfTheTensor) {
  const BlockTable table(kTensors);
  std::byte memory{};
  for (const Slab& slab :
       {Slab{9, 0, 1, &memory}, Slab{3, 0, 2, &memory}, Slab{3, -1, 1, &memory}, Slab{1, 0, 1, &memory}})
    EXPECT_THROW(split_slabs(kTensors, table, std::span(&slab, 1)), InternalError);
}

TEST(Shares, OwnersCoverEveryBlockOnceOverAllRounds) {
  const std::vector<TensorInfo> tensors{{"m/a", DType::f32, {65536 * 1500 + 1}}};  // no memory behind it
  const BlockTable table(tensors);
  for (const int ranks : {1, 2, 3, 7, 2000})
    for (const Index rounds : {1, 2, 5, 1000}) {
      std::vector<int> seen(static_cast<std::size_t>(table.blocks()), 0);
      for (Index round = 0; round < rounds; ++round)
        for (int rank = 0; rank < ranks; ++rank) {
          const LeafRange owned = owned_blocks(table, rank, ranks, round, rounds);
          for (Index block = owned.begin; block < owned.end; ++block) ++seen[static_cast<std::size_t>(block)];
        }
      EXPECT_THAT(seen, ::testing::Each(1)) << ranks << " ranks, " << rounds << " rounds";
    }
}

TEST(Shares, PackEveryFragmentOnceOverAllRounds) {
  const std::vector<TensorInfo> tensors{{"m/a", DType::f32, {65536 * 20}}};
  const BlockTable table(tensors);
  std::vector<std::byte> memory(4000);
  std::vector<Slab> slabs;
  for (Index block = 0; block < 20; ++block)
    slabs.push_back({0, block * 65536 + 7, 10 * block + 1, memory.data()});
  const Shares shares = split_slabs(tensors, table, slabs);
  RoundMemory room;
  for (const int ranks : {1, 3, 64}) {
    const auto expected = message_bytes(shares, table, ranks, 1, Payload::data);
    for (const Index rounds : {1, 4, 100}) {
      std::vector<std::int64_t> sums(static_cast<std::size_t>(ranks), 0);
      for (Index round = 0; round < rounds; ++round) {
        const Outgoing out = pack_fragments(shares, table, ranks, round, rounds, Payload::data, room);
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += out.counts[i];
      }
      EXPECT_EQ(sums, expected);
    }
  }
}

TEST(Shares, AssemblingNamesWhatIsMissingOrDouble) {
  const BlockTable table(kTensors);
  std::vector<std::byte> memory(262144);
  const auto assemble = [&](std::vector<Slab> slabs) {
    std::vector<std::byte> messages;
    RoundMemory room;
    for (const Slab& slab : slabs) {  // each slab from another rank
      const Shares shares = split_slabs(kTensors, table, std::span(&slab, 1));
      const auto bytes = pack_fragments(shares, table, 1, 0, 1, Payload::data, room).bytes;
      messages.insert(messages.end(), bytes.begin(), bytes.end());
    }
    return message_of<InternalError>(
        [&] { assemble_blocks(kTensors, table, unpack_fragments(messages, Payload::data), room); });
  };
  EXPECT_THAT(assemble({{0, 10, 65526, memory.data()}}), ::testing::StartsWith("m/a, elements [0, 10)"));
  EXPECT_THAT(assemble({{0, 0, 100, memory.data()}}), ::testing::StartsWith("m/a, elements [100, 65536)"));
  EXPECT_THAT(
      assemble({{0, 0, 100, memory.data()}, {0, 90, 65446, memory.data()}}),
      ::testing::AllOf(::testing::StartsWith("m/a, elements [90, 100)"), ::testing::HasSubstr("several")));
}

}  // namespace
}  // namespace cartan::store
