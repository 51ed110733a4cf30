// Communicators between the ranks of a test.
#pragma once

#include <gmock/gmock.h>
#include <mpi.h>
#include <nccl.h>

#include "emu/emu_fixture.hpp"

namespace emu::testing {

inline int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
inline int world_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

/// Rank 0's id, on all ranks.
inline ncclUniqueId shared_id() {
  ncclUniqueId id{};
  if (world_rank() == 0) {
    EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  }
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  return id;
}

inline ncclComm_t make_world() {
  ncclComm_t made = nullptr;
  EXPECT_EQ(ncclCommInitRank(&made, world_size(), shared_id(), world_rank()), ncclSuccess);
  return made;
}

/// One that does not block, still in progress.
inline ncclComm_t begin_world() {
  ncclConfig_t wanted = NCCL_CONFIG_INITIALIZER;
  wanted.blocking = 0;
  ncclComm_t made = nullptr;
  const ncclUniqueId id = shared_id();
  EXPECT_EQ(ncclCommInitRankConfig(&made, world_size(), id, world_rank(), &wanted), ncclInProgress);
  return made;
}

inline ncclResult_t state_of(ncclComm_t communicator) {
  ncclResult_t state = ncclSuccess;
  EXPECT_EQ(ncclCommGetAsyncError(communicator, &state), ncclSuccess);
  return state;
}

inline ncclResult_t wait_for(ncclComm_t communicator) {
  ncclResult_t state = ncclInProgress;
  while ((state = state_of(communicator)) == ncclInProgress) {
  }
  return state;
}

/// All ranks are at the same test; what one of them leaves behind does not meet the next one's communicators.
class Ranks : public InSchedules {
 protected:
  Ranks() { config.timeout_s = 30; }
  ~Ranks() override {
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_ != nullptr) ncclCommDestroy(world_);
  }
  ncclComm_t world() {
    if (world_ == nullptr) world_ = make_world();
    return world_;
  }
  void synchronize() { EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }

  const int rank_ = world_rank(), size_ = world_size();
  TestStream stream_, other_;
  ncclComm_t world_ = nullptr;
};

}  // namespace emu::testing
