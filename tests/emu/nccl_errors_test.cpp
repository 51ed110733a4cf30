// What the stand-in says where ranks do not agree, or where one of them fails.
#include "emu/nccl_fixture.hpp"

namespace emu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using NcclErrors = Ranks;
EMU_IN_SCHEDULES(NcclErrors);

constexpr int kCount = 64;

/// The work of a communicator that is broken ends; then nobody can use it.
void expect_broken(ncclComm_t communicator, float* data, cudaStream_t stream) {
  EXPECT_EQ(state_of(communicator), ncclInvalidUsage);
  EXPECT_EQ(ncclAllReduce(data, data, 1, ncclFloat, ncclSum, communicator, stream), ncclInvalidUsage);
  EXPECT_EQ(ncclCommAbort(communicator), ncclSuccess);
}

TEST_P(NcclErrors, CountsThatDifferAreFoundOnAllRanks) {
  const ncclComm_t made = make_world();
  DeviceArray<float> array(std::vector<float>(kCount, 1.0f));
  ncclAllReduce(array.data(), array.data(), rank_ == 0 ? kCount : kCount / 2, ncclFloat, ncclSum, made,
                stream_);
  synchronize();
  EXPECT_THAT(all_findings(), AllOf(HasSubstr("64"), HasSubstr("32"), HasSubstr("collective 1")));
  expect_broken(made, array.data(), stream_);
}

TEST_P(NcclErrors, TypesThatDifferAreFound) {
  const ncclComm_t made = make_world();
  DeviceArray<float> array(std::vector<float>(kCount, 1.0f));
  ncclAllReduce(array.data(), array.data(), kCount, rank_ == 0 ? ncclFloat : ncclInt32, ncclSum, made,
                stream_);
  synchronize();
  EXPECT_FINDING("collective 1");
  expect_broken(made, array.data(), stream_);
}

TEST_P(NcclErrors, CallsInAnotherOrderAreFound) {
  const ncclComm_t made = make_world();
  DeviceArray<float> one(std::vector<float>(1, 1.0f)),
      all(std::vector<float>(static_cast<std::size_t>(size_), 1.0f));
  for (int turn = 0; turn < 2; ++turn) {
    if ((turn + (rank_ == 0 ? 1 : 0)) % 2 == 0)
      ncclAllReduce(one.data(), one.data(), 1, ncclFloat, ncclSum, made, stream_);
    else
      ncclAllGather(one.data(), all.data(), 1, ncclFloat, made, stream_);
  }
  synchronize();
  EXPECT_THAT(all_findings(), AllOf(HasSubstr("ncclAllReduce"), HasSubstr("ncclAllGather")));
  expect_broken(made, one.data(), stream_);
}

TEST_P(NcclErrors, RootsThatDifferAreFound) {
  const ncclComm_t made = make_world();
  DeviceArray<float> array(std::vector<float>(1, 1.0f));
  ncclBroadcast(array.data(), array.data(), 1, ncclFloat, rank_ == 0 ? 0 : 1, made, stream_);
  synchronize();
  EXPECT_FINDING("from 1");
  expect_broken(made, array.data(), stream_);
}

TEST_P(NcclErrors, RootsOfReductionsThatDifferAreFound) {
  const ncclComm_t made = make_world();
  DeviceArray<float> array(std::vector<float>(1, 1.0f));
  ncclReduce(array.data(), array.data(), 1, ncclFloat, ncclSum, rank_ == 0 ? 0 : 1, made, stream_);
  synchronize();
  EXPECT_FINDING("ncclReduce of 1 elements of type 7 to 1");
  expect_broken(made, array.data(), stream_);
}

TEST_P(NcclErrors, ReductionsInTheWrongPlaceAreRefused) {
  DeviceArray<float> array(std::vector<float>(static_cast<std::size_t>(kCount * size_), 1.0f));
  const int other = (rank_ + 1) % size_;
  EXPECT_EQ(ncclReduceScatter(array.data(), array.data() + other * kCount, kCount, ncclFloat, ncclSum,
                              world(), stream_),
            ncclInvalidArgument);
  EXPECT_FINDING("overlap");
  EXPECT_EQ(
      ncclReduceScatter(array.data() + 1, array.data() + 1, kCount, ncclFloat, ncclSum, world(), stream_),
      ncclInvalidArgument);
  EXPECT_FINDING("not in one allocation");
  EXPECT_EQ(ncclReduce(array.data(), nullptr, kCount, ncclFloat, ncclSum, rank_, world(), stream_),
            ncclInvalidArgument);
  EXPECT_FINDING("not in one allocation");
}

TEST_P(NcclErrors, MessagesThatDifferAreFoundOnBothSides) {
  const ncclComm_t made = make_world();
  DeviceArray<float> array(std::vector<float>(kCount, 1.0f));
  if (rank_ == 0) ncclSend(array.data(), kCount, ncclFloat, 1, made, stream_);
  if (rank_ == 1) ncclRecv(array.data(), kCount / 2, ncclFloat, 0, made, stream_);
  synchronize();
  if (rank_ < 2) {
    EXPECT_FINDING("ncclSend of 64");
    expect_broken(made, array.data(), stream_);
  } else {
    EXPECT_NO_FINDINGS();
    ncclCommAbort(made);
  }
}

TEST_P(NcclErrors, SendsThatWaitForEachOtherAreADeadlock) {
  config.timeout_s = 0.5;
  const ncclComm_t made = make_world();
  DeviceArray<float> array(std::vector<float>(kCount, 1.0f)), in(kCount);
  const int next = (rank_ + 1) % size_, previous = (rank_ + size_ - 1) % size_;
  MPI_Barrier(MPI_COMM_WORLD);
  ncclSend(array.data(), kCount, ncclFloat, next, made, stream_);
  ncclRecv(in.data(), kCount, ncclFloat, previous, made, stream_);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorLaunchTimeout);
  EXPECT_THAT(all_findings(),
              AllOf(HasSubstr("deadlock"), HasSubstr("ncclSend with " + std::to_string(next))));
  ncclCommAbort(made);
  reset();
}

TEST_P(NcclErrors, AReceiveHoldsUpTheSendBehindItOnAnotherStreamToo) {
  if (size_ != 2) GTEST_SKIP() << "needs two ranks";
  config.timeout_s = 0.5;
  const ncclComm_t made = make_world();
  DeviceArray<float> array(std::vector<float>(kCount, 1.0f)), in(kCount);
  MPI_Barrier(MPI_COMM_WORLD);
  ncclRecv(in.data(), kCount, ncclFloat, 1 - rank_, made, stream_);
  ncclSend(array.data(), kCount, ncclFloat, 1 - rank_, made, other_);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorLaunchTimeout);
  EXPECT_FINDING("deadlock");
  ncclCommAbort(made);
  reset();
}

TEST_P(NcclErrors, CollectivesOfTwoCommunicatorsInAnotherOrderAreADeadlock) {
  config.timeout_s = 0.5;
  const ncclComm_t first = make_world(), second = make_world();
  DeviceArray<float> array(std::vector<float>(1, 1.0f));
  MPI_Barrier(MPI_COMM_WORLD);
  for (const ncclComm_t communicator : {rank_ == 0 ? first : second, rank_ == 0 ? second : first})
    ncclAllReduce(array.data(), array.data(), 1, ncclFloat, ncclSum, communicator, stream_);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorLaunchTimeout);
  EXPECT_FINDING("waits for peers");
  ncclCommAbort(first);
  ncclCommAbort(second);
  reset();
}

TEST_P(NcclErrors, AbortEndsWhatWaitsForARankThatDoesNotCome) {
  const ncclComm_t made = make_world();
  DeviceArray<float> array(std::vector<float>(kCount, 1.0f)), later(std::vector<float>(1, 1.0f));
  if (rank_ != 0) {
    ncclAllReduce(array.data(), array.data(), kCount, ncclFloat, ncclSum, made, stream_);
    cudaMemsetAsync(later.data(), 0, later.bytes(), stream_);
    EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
    EXPECT_EQ(state_of(made), ncclSuccess);
  }
  EXPECT_EQ(ncclCommAbort(made), ncclSuccess);
  synchronize();
  if (rank_ != 0) {
    EXPECT_EQ(later.host()[0], 0.0f);
  }
  EXPECT_NO_FINDINGS();
}

TEST_P(NcclErrors, AConnectionThatBreaksShowsInTheStateAndHangsUntilTheAbort) {
  const ncclComm_t made = make_world();
  DeviceArray<float> array(std::vector<float>(kCount, 1.0f));
  if (rank_ == 0) config.failure = {"ncclAsync", 2};
  ncclAllReduce(array.data(), array.data(), kCount, ncclFloat, ncclSum, made, stream_);
  synchronize();
  ncclAllReduce(array.data(), array.data(), kCount, ncclFloat, ncclSum, made, stream_);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  for (int i = 0; i < 10; ++i) cudaStreamQuery(stream_);
  EXPECT_EQ(state_of(made), rank_ == 0 ? ncclRemoteError : ncclSuccess);
  EXPECT_EQ(ncclCommAbort(made), ncclSuccess);
  synchronize();
  EXPECT_NO_FINDINGS();
}

TEST_P(NcclErrors, ACommunicatorIsInProgressUntilAllCameAndCanBeAborted) {
  // Rank 0 never comes.
  const ncclUniqueId id = shared_id();
  if (rank_ != 0) {
    ncclConfig_t wanted = NCCL_CONFIG_INITIALIZER;
    wanted.blocking = 0;
    ncclComm_t made = nullptr;
    EXPECT_EQ(ncclCommInitRankConfig(&made, size_, id, rank_, &wanted), ncclInProgress);
    for (int i = 0; i < 10; ++i) EXPECT_EQ(state_of(made), ncclInProgress);
    DeviceArray<float> array(std::vector<float>(1, 1.0f));
    EXPECT_EQ(ncclAllReduce(array.data(), array.data(), 1, ncclFloat, ncclSum, made, stream_),
              ncclInvalidUsage);
    EXPECT_FINDING("still in progress");
    EXPECT_EQ(ncclCommAbort(made), ncclSuccess);
  }
  EXPECT_NO_FINDINGS();
}

TEST_P(NcclErrors, ABlockingCommunicatorThatNotAllJoinIsAFinding) {
  config.timeout_s = 0.2;
  const ncclUniqueId id = shared_id();
  if (rank_ != 0) {
    ncclComm_t made = nullptr;
    EXPECT_EQ(ncclCommInitRank(&made, size_, id, rank_), ncclSystemError);
    EXPECT_EQ(made, nullptr);
    EXPECT_FINDING("not all ranks");
  }
  EXPECT_NO_FINDINGS();
}

TEST_P(NcclErrors, WorkThatGoesOnBeforeTheFirstGroupIsThereIsFound) {
  const ncclComm_t made = begin_world();
  EXPECT_EQ(wait_for(made), ncclSuccess);
  DeviceArray<float> array(std::vector<float>(1, 1.0f)), copy(1);
  TestEvent done;
  EXPECT_EQ(ncclAllReduce(array.data(), array.data(), 1, ncclFloat, ncclSum, made, stream_), ncclInProgress);
  cudaEventRecord(done, stream_);  // too early
  EXPECT_EQ(wait_for(made), ncclSuccess);
  cudaStreamWaitEvent(other_, done, 0);
  cudaMemcpyAsync(copy.data(), array.data(), 4, cudaMemcpyDeviceToDevice, other_);
  cudaDeviceSynchronize();
  EXPECT_FINDING("race between streams");
  EXPECT_EQ(ncclCommDestroy(made), ncclSuccess);
}

TEST_P(NcclErrors, UseAfterTheEndIsFound) {
  const ncclComm_t made = make_world();
  DeviceArray<float> array(std::vector<float>(1, 1.0f));
  EXPECT_EQ(ncclCommFinalize(made), ncclSuccess);
  EXPECT_EQ(ncclAllReduce(array.data(), array.data(), 1, ncclFloat, ncclSum, made, stream_),
            ncclInvalidUsage);
  EXPECT_FINDING("finalized");
  EXPECT_EQ(ncclCommDestroy(made), ncclSuccess);
  EXPECT_EQ(ncclCommDestroy(made), ncclInvalidArgument);
  EXPECT_FINDING("no longer");
}

TEST_P(NcclErrors, MemoryThatIsNotTheDevicesIsRefused) {
  std::vector<float> host(kCount);
  DeviceArray<float> array(std::vector<float>(kCount, 1.0f));
  const ncclComm_t made = world();
  EXPECT_EQ(ncclAllReduce(host.data(), array.data(), kCount, ncclFloat, ncclSum, made, stream_),
            ncclInvalidArgument);
  EXPECT_FINDING("not in one allocation");
  EXPECT_EQ(ncclAllReduce(array.data(), array.data(), kCount + 1, ncclFloat, ncclSum, made, stream_),
            ncclInvalidArgument);
  EXPECT_FINDING("not in one allocation");
  EXPECT_EQ(ncclAllReduce(array.data(), array.data() + 1, kCount - 1, ncclFloat, ncclSum, made, stream_),
            ncclInvalidArgument);
  EXPECT_FINDING("overlap");
  EXPECT_STRNE(ncclGetLastError(nullptr), "");
}

TEST_P(NcclErrors, AGroupWithAFailedCallEnqueuesNothing) {
  DeviceArray<float> array(std::vector<float>(1, 1.0f));
  const ncclComm_t made = world();
  config.failure = {"ncclSend", 1};
  ncclGroupStart();
  EXPECT_EQ(ncclRecv(array.data(), 1, ncclFloat, 0, made, stream_), ncclSuccess);
  EXPECT_EQ(ncclSend(array.data(), 1, ncclFloat, 0, made, stream_), ncclSystemError);
  EXPECT_EQ(ncclGroupEnd(), ncclSystemError);
  synchronize();
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  EXPECT_FINDING("without ncclGroupStart");
}

}  // namespace
}  // namespace emu::testing
