// The verbs, groups, splits and the states of communicators, where all goes well.
#include <cstdint>
#include <numeric>

#include "emu/nccl_fixture.hpp"

namespace emu::testing {
namespace {

using Nccl = Ranks;
EMU_IN_SCHEDULES(Nccl);

constexpr int kCount = 333;

std::vector<float> some_of(int rank, int count = kCount) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 3) % 11);
  return values;
}

/// Whole numbers: every order of the sum gives it.
std::vector<float> sum_of(int ranks, int count = kCount) {
  std::vector<float> sum(static_cast<std::size_t>(count), 0.0f);
  for (int r = 0; r < ranks; ++r) {
    const std::vector<float> part = some_of(r, count);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  return sum;
}

std::vector<float> slice(const std::vector<float>& values, int part, int count) {
  return {values.begin() + part * count, values.begin() + (part + 1) * count};
}

TEST_P(Nccl, AllReduceSums) {
  DeviceArray<float> in(some_of(rank_)), out(kCount);
  EXPECT_EQ(ncclAllReduce(in.data(), out.data(), kCount, ncclFloat, ncclSum, world(), stream_), ncclSuccess);
  EXPECT_EQ(ncclAllReduce(in.data(), in.data(), kCount, ncclFloat, ncclSum, world(), stream_), ncclSuccess);
  synchronize();
  EXPECT_EQ(out.host(), sum_of(size_));
  EXPECT_EQ(in.host(), sum_of(size_));
  EXPECT_NO_FINDINGS();
}

TEST_P(Nccl, ReduceSumsAtItsRoot) {
  DeviceArray<float> in(some_of(rank_)), out(kCount);
  const int root = size_ - 1;
  float* const nowhere = nullptr;  // all that other ranks need
  EXPECT_EQ(ncclReduce(in.data(), rank_ == root ? out.data() : nowhere, kCount, ncclFloat, ncclSum, root,
                       world(), stream_),
            ncclSuccess);
  EXPECT_EQ(ncclReduce(in.data(), in.data(), kCount, ncclFloat, ncclSum, root, world(), stream_),
            ncclSuccess);
  synchronize();
  EXPECT_EQ(in.host(), rank_ == root ? sum_of(size_) : some_of(rank_));
  if (rank_ == root) {
    EXPECT_EQ(out.host(), sum_of(size_));
  }
  EXPECT_NO_FINDINGS();
}

TEST_P(Nccl, SumsOfWholeNumbersAreExact) {
  const std::int64_t large = (std::int64_t{1} << 60) + 1 + rank_;
  DeviceArray<std::int64_t> array(std::vector<std::int64_t>(3, large));
  EXPECT_EQ(ncclAllReduce(array.data(), array.data(), 3, ncclInt64, ncclMax, world(), stream_), ncclSuccess);
  synchronize();
  EXPECT_EQ(array.host()[2], (std::int64_t{1} << 60) + size_);
  DeviceArray<std::int64_t> small(std::vector<std::int64_t>(1, (std::int64_t{1} << 54) + 1));
  EXPECT_EQ(ncclAllReduce(small.data(), small.data(), 1, ncclInt64, ncclSum, world(), stream_), ncclSuccess);
  synchronize();
  EXPECT_EQ(small.host()[0], size_ * ((std::int64_t{1} << 54) + 1));
  EXPECT_NO_FINDINGS();
}

TEST_P(Nccl, SumsOfFloatsAreNotInTheOrderOfRanks) {
  if (size_ != 3) GTEST_SKIP() << "needs three ranks";
  // In the order of ranks: (1e8 - 1e8) + 1 = 1; in other orders the 1 is lost.
  const float values[3] = {1e8f, -1e8f, 1.0f};
  DeviceArray<float> array(std::vector<float>(kCount, values[rank_]));
  EXPECT_EQ(ncclAllReduce(array.data(), array.data(), kCount, ncclFloat, ncclSum, world(), stream_),
            ncclSuccess);
  synchronize();
  std::vector<float> found = array.host(), of_rank_0 = found;
  EXPECT_THAT(found, ::testing::Contains(0.0f));
  MPI_Bcast(of_rank_0.data(), kCount, MPI_FLOAT, 0, MPI_COMM_WORLD);
  EXPECT_EQ(found, of_rank_0);
}

TEST_P(Nccl, ReduceScatterGivesEachRankItsPart) {
  DeviceArray<float> in(some_of(rank_, kCount * size_)), out(kCount);
  float* const in_place = in.data() + rank_ * kCount;
  EXPECT_EQ(ncclReduceScatter(in.data(), out.data(), kCount, ncclFloat, ncclSum, world(), stream_),
            ncclSuccess);
  EXPECT_EQ(ncclReduceScatter(in.data(), in_place, kCount, ncclFloat, ncclSum, world(), stream_),
            ncclSuccess);
  synchronize();
  const std::vector<float> expected = slice(sum_of(size_, kCount * size_), rank_, kCount);
  EXPECT_EQ(out.host(), expected);
  EXPECT_EQ(slice(in.host(), rank_, kCount), expected);
  EXPECT_NO_FINDINGS();
}

TEST_P(Nccl, AllGatherPutsPartsInTheOrderOfRanks) {
  DeviceArray<float> in(some_of(rank_)), out(static_cast<std::size_t>(kCount * size_));
  EXPECT_EQ(ncclAllGather(in.data(), out.data(), kCount, ncclFloat, world(), stream_), ncclSuccess);
  EXPECT_EQ(ncclAllGather(out.data() + rank_ * kCount, out.data(), kCount, ncclFloat, world(), stream_),
            ncclSuccess);
  synchronize();
  for (int r = 0; r < size_; ++r) EXPECT_EQ(slice(out.host(), r, kCount), some_of(r));
  EXPECT_NO_FINDINGS();
}

TEST_P(Nccl, BroadcastComesFromItsRoot) {
  for (int root = 0; root < size_; ++root) {
    DeviceArray<float> array(some_of(rank_));
    EXPECT_EQ(ncclBroadcast(array.data(), array.data(), kCount, ncclFloat, root, world(), stream_),
              ncclSuccess);
    synchronize();
    EXPECT_EQ(array.host(), some_of(root));
  }
  EXPECT_NO_FINDINGS();
}

TEST_P(Nccl, BroadcastDoesNotReadTheInputOfOthers) {
  DeviceArray<float> in(some_of(rank_)), out(kCount);
  const void* const source = rank_ == 0 ? in.data() : nullptr;
  EXPECT_EQ(ncclBroadcast(source, out.data(), kCount, ncclFloat, 0, world(), stream_), ncclSuccess);
  synchronize();
  EXPECT_EQ(out.host(), some_of(0));
  EXPECT_NO_FINDINGS();
}

TEST_P(Nccl, AGroupExchangesMessages) {
  DeviceArray<float> out(some_of(rank_)), in(kCount);
  world();
  EXPECT_EQ(ncclGroupStart(), ncclSuccess);
  EXPECT_EQ(ncclSend(out.data(), kCount, ncclFloat, (rank_ + 1) % size_, world(), stream_), ncclSuccess);
  EXPECT_EQ(ncclRecv(in.data(), kCount, ncclFloat, (rank_ + size_ - 1) % size_, world(), stream_),
            ncclSuccess);
  EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
  synchronize();
  EXPECT_EQ(in.host(), some_of((rank_ + size_ - 1) % size_));
  EXPECT_NO_FINDINGS();
}

TEST_P(Nccl, AGroupIsAnAllToAllWithRepeatedMessages) {
  DeviceArray<float> out(some_of(rank_, 2 * kCount * size_)),
      in(static_cast<std::size_t>(2 * kCount * size_));
  world();
  ncclGroupStart();
  for (int peer = 0; peer < size_; ++peer)
    for (int half = 0; half < 2; ++half) {
      const int first = (2 * peer + half) * kCount;
      ncclSend(out.data() + first, kCount, ncclFloat, peer, world(), stream_);
      ncclRecv(in.data() + first, kCount, ncclFloat, peer, world(), stream_);
    }
  EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
  synchronize();
  for (int peer = 0; peer < size_; ++peer)
    EXPECT_EQ(slice(in.host(), peer, 2 * kCount),
              slice(some_of(peer, 2 * kCount * size_), rank_, 2 * kCount));
  EXPECT_NO_FINDINGS();
}

TEST_P(Nccl, CollectivesOfAGroupRunInItsOrder) {
  DeviceArray<float> array(some_of(rank_)), all(static_cast<std::size_t>(kCount * size_));
  world();
  ncclGroupStart();
  ncclAllReduce(array.data(), array.data(), kCount, ncclFloat, ncclSum, world(), stream_);
  ncclAllGather(array.data(), all.data(), kCount, ncclFloat, world(), stream_);
  ncclGroupEnd();
  synchronize();
  for (int r = 0; r < size_; ++r) EXPECT_EQ(slice(all.host(), r, kCount), sum_of(size_));
  EXPECT_NO_FINDINGS();
}

TEST_P(Nccl, MessagesWithoutAGroupGoInOneDirection) {
  if (size_ == 1) GTEST_SKIP() << "needs two ranks";
  DeviceArray<float> array(some_of(rank_));
  if (rank_ == 0)
    EXPECT_EQ(ncclSend(array.data(), kCount, ncclFloat, 1, world(), stream_), ncclSuccess);
  else if (rank_ == 1)
    EXPECT_EQ(ncclRecv(array.data(), kCount, ncclFloat, 0, world(), stream_), ncclSuccess);
  else
    world();
  synchronize();
  if (rank_ == 1) {
    EXPECT_EQ(array.host(), some_of(0));
  }
  EXPECT_NO_FINDINGS();
}

TEST_P(Nccl, EmptyCallsDoNothing) {
  DeviceArray<float> array(some_of(rank_));
  EXPECT_EQ(ncclAllReduce(array.data(), array.data(), 0, ncclFloat, ncclSum, world(), stream_), ncclSuccess);
  EXPECT_EQ(ncclSend(array.data(), 0, ncclFloat, 0, world(), stream_), ncclSuccess);
  EXPECT_EQ(ncclGroupStart(), ncclSuccess);
  EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
  synchronize();
  EXPECT_EQ(array.host(), some_of(rank_));
  EXPECT_NO_FINDINGS();
}

TEST_P(Nccl, SixteenBitSumsAreRounded) {
  // 256 + 1 is no bf16 number.
  DeviceArray<std::uint16_t> array(std::vector<std::uint16_t>(kCount, rank_ == 0 ? 0x4380 : 0x3f80));
  EXPECT_EQ(ncclAllReduce(array.data(), array.data(), kCount, ncclBfloat16, ncclMax, world(), stream_),
            ncclSuccess);
  synchronize();
  EXPECT_EQ(array.host(), std::vector<std::uint16_t>(kCount, 0x4380));
  if (size_ != 2) return;
  DeviceArray<std::uint16_t> sum(std::vector<std::uint16_t>(kCount, rank_ == 0 ? 0x4380 : 0x3f80));
  EXPECT_EQ(ncclAllReduce(sum.data(), sum.data(), kCount, ncclBfloat16, ncclSum, world(), stream_),
            ncclSuccess);
  synchronize();
  EXPECT_EQ(sum.host(), std::vector<std::uint16_t>(kCount, 0x4380));
}

TEST_P(Nccl, AStreamOrdersWorkAndCalls) {
  DeviceArray<float> array(kCount);
  TestEvent ready;
  cudaMemsetAsync(array.data(), 0, array.bytes(), other_);
  cudaEventRecord(ready, other_);
  cudaStreamWaitEvent(stream_, ready, 0);
  ncclAllReduce(array.data(), array.data(), kCount, ncclFloat, ncclSum, world(), stream_);
  synchronize();
  EXPECT_EQ(array.host(), std::vector<float>(kCount, 0.0f));
  EXPECT_NO_FINDINGS();
}

TEST_P(Nccl, AMissingWaitIsFound) {
  DeviceArray<float> array(kCount);
  cudaMemsetAsync(array.data(), 0, array.bytes(), other_);
  ncclAllReduce(array.data(), array.data(), kCount, ncclFloat, ncclSum, world(), stream_);
  cudaDeviceSynchronize();
  EXPECT_FINDING("race between streams");
}

TEST_P(Nccl, ADeviceGoesOnWhileItsHostIsElsewhere) {
  DeviceArray<float> array(some_of(rank_));
  ncclAllReduce(array.data(), array.data(), kCount, ncclFloat, ncclSum, world(), stream_);
  if (rank_ == 0) synchronize();
  MPI_Barrier(MPI_COMM_WORLD);  // the others wait here, in MPI
  synchronize();
  EXPECT_EQ(array.host(), sum_of(size_));
  EXPECT_NO_FINDINGS();
}

TEST_P(Nccl, SplitMakesAColoursRanksByKey) {
  ncclComm_t half = nullptr;
  const int color = rank_ % 2, first = (size_ - color + 1) / 2;
  EXPECT_EQ(ncclCommSplit(world(), color, -rank_, &half, nullptr), ncclSuccess);
  int size = 0, rank = 0;
  ncclCommCount(half, &size);
  ncclCommUserRank(half, &rank);
  EXPECT_EQ(size, first);
  EXPECT_EQ(rank, size - 1 - rank_ / 2);
  DeviceArray<std::int64_t> one(std::vector<std::int64_t>(1, rank_));
  DeviceArray<std::int64_t> all(static_cast<std::size_t>(size));
  EXPECT_EQ(ncclAllGather(one.data(), all.data(), 1, ncclInt64, half, stream_), ncclSuccess);
  synchronize();
  for (int r = 0; r < size; ++r)
    EXPECT_EQ(all.host()[static_cast<std::size_t>(r)], 2 * (size - 1 - r) + color);
  EXPECT_EQ(ncclCommDestroy(half), ncclSuccess);
  EXPECT_NO_FINDINGS();
}

TEST_P(Nccl, SplitsFollowOneAnotherAndLeaveRanksOut) {
  for (int turn = 0; turn < 5; ++turn) {
    ncclComm_t part = nullptr;
    const int color = rank_ == turn % size_ ? NCCL_SPLIT_NOCOLOR : turn;
    EXPECT_EQ(ncclCommSplit(world(), color, rank_, &part, nullptr), ncclSuccess);
    EXPECT_EQ(part == nullptr, color == NCCL_SPLIT_NOCOLOR);
    if (part == nullptr) continue;
    int size = 0;
    ncclCommCount(part, &size);
    EXPECT_EQ(size, size_ - 1);
    EXPECT_EQ(ncclCommDestroy(part), ncclSuccess);
  }
  EXPECT_NO_FINDINGS();
}

TEST_P(Nccl, ACommunicatorThatDoesNotBlockIsThereWhenAllHaveCome) {
  const ncclComm_t made = begin_world();
  EXPECT_EQ(wait_for(made), ncclSuccess);
  DeviceArray<float> array(some_of(rank_));
  EXPECT_EQ(ncclAllReduce(array.data(), array.data(), kCount, ncclFloat, ncclSum, made, stream_),
            ncclInProgress);
  EXPECT_EQ(wait_for(made), ncclSuccess);
  EXPECT_EQ(ncclAllReduce(array.data(), array.data(), kCount, ncclFloat, ncclMax, made, stream_),
            ncclSuccess);
  synchronize();
  EXPECT_EQ(array.host(), sum_of(size_));
  EXPECT_EQ(ncclCommFinalize(made), ncclInProgress);
  EXPECT_EQ(wait_for(made), ncclSuccess);
  EXPECT_EQ(ncclCommDestroy(made), ncclSuccess);
  EXPECT_NO_FINDINGS();
}

TEST_P(Nccl, ASplitThatDoesNotBlockIsThereWhenAllHaveCome) {
  const ncclComm_t made = begin_world();
  EXPECT_EQ(wait_for(made), ncclSuccess);
  ncclComm_t part = nullptr;
  EXPECT_EQ(ncclCommSplit(made, 0, size_ - rank_, &part, nullptr), ncclInProgress);
  EXPECT_EQ(wait_for(made), ncclSuccess);
  EXPECT_EQ(wait_for(part), ncclSuccess);
  int rank = 0;
  ncclCommUserRank(part, &rank);
  EXPECT_EQ(rank, size_ - 1 - rank_);
  EXPECT_EQ(ncclCommDestroy(part), ncclSuccess);
  EXPECT_EQ(ncclCommDestroy(made), ncclSuccess);
  EXPECT_NO_FINDINGS();
}

TEST_P(Nccl, FinalizeWaitsForWhatIsEnqueued) {
  const ncclComm_t made = make_world();
  DeviceArray<float> array(some_of(rank_));
  ncclAllReduce(array.data(), array.data(), kCount, ncclFloat, ncclSum, made, stream_);
  EXPECT_EQ(ncclCommFinalize(made), ncclSuccess);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaSuccess);
  EXPECT_EQ(array.host(), sum_of(size_));
  EXPECT_EQ(ncclCommDestroy(made), ncclSuccess);
  EXPECT_NO_FINDINGS();
}

TEST_P(Nccl, ItsMemoryCanBeRegistered) {
  void *data = nullptr, *registration = nullptr;
  EXPECT_EQ(ncclMemAlloc(&data, 4096), ncclSuccess);
  EXPECT_EQ(ncclCommRegister(world(), data, 4096, &registration), ncclSuccess);
  EXPECT_EQ(ncclCommDeregister(world(), registration), ncclSuccess);
  EXPECT_EQ(ncclMemFree(data), ncclSuccess);
  EXPECT_NO_FINDINGS();
}

TEST_P(Nccl, CallsCanBeCaptured) {
  DeviceArray<float> array(std::vector<float>(1, 1.0f));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  world();
  cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal);
  EXPECT_EQ(ncclAllReduce(array.data(), array.data(), 1, ncclFloat, ncclSum, world(), stream_), ncclSuccess);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
  synchronize();
  EXPECT_EQ(array.host()[0], static_cast<float>(size_ * size_ * size_));
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  EXPECT_NO_FINDINGS();
}

}  // namespace
}  // namespace emu::testing
