// Deliberately wrong kernels: the emulator must find each, in every order of threads. Beside them right ones
// that are easy to mistake for wrong.
#include "bugs.hpp"

#include <cuda_runtime.h>

#include <warp/memory.cuh>

namespace emu::testing {
namespace {

using cartan::kernels::warp::cp_async16;
using cartan::kernels::warp::cp_async_commit;
using cartan::kernels::warp::cp_async_wait;
using cartan::kernels::warp::dynamic_shared;

constexpr unsigned kAllLanes = 0xffffffffu;

__global__ void no_barrier(float* out, const float* in) {
  __shared__ float room[kCaseThreads];
  room[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = room[(threadIdx.x + 32) % kCaseThreads];
}

__global__ void no_barrier_before_reuse(float* out, const float* in) {
  __shared__ float room[kCaseThreads];
  float sum = 0;
  for (int round = 0; round < 2; ++round) {
    room[threadIdx.x] = in[threadIdx.x] + static_cast<float>(round);
    __syncthreads();
    sum += room[kCaseThreads - 1 - threadIdx.x];
  }
  out[threadIdx.x] = sum;
}

__global__ void barrier_before_reuse(float* out, const float* in) {
  __shared__ float room[kCaseThreads];
  float sum = 0;
  for (int round = 0; round < 2; ++round) {
    __syncthreads();
    room[threadIdx.x] = in[threadIdx.x] + static_cast<float>(round);
    __syncthreads();
    sum += room[kCaseThreads - 1 - threadIdx.x];
  }
  out[threadIdx.x] = sum;
}

__global__ void lanes_in_lock_step(float* out, const float* in) {
  __shared__ float room[kCaseThreads];
  room[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = room[threadIdx.x ^ 1];
}

__global__ void lanes_after_syncwarp(float* out, const float* in) {
  __shared__ float room[kCaseThreads];
  room[threadIdx.x] = in[threadIdx.x];
  __syncwarp();
  out[threadIdx.x] = room[threadIdx.x ^ 1];
}

/// A shuffle orders no memory.
__global__ void lanes_after_shuffle(float* out, const float* in) {
  __shared__ float room[kCaseThreads];
  room[threadIdx.x] = in[threadIdx.x];
  const float other = __shfl_xor_sync(kAllLanes, in[threadIdx.x], 1);
  out[threadIdx.x] = room[threadIdx.x ^ 1] + other;
}

/// All lanes of a warp read what one of them writes after __syncwarp.
__global__ void lane_writes_what_the_warp_has_read(float* out, const float* in) {
  __shared__ float of_warp[kCaseThreads / 32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float sum = 0;
  for (unsigned turn = 0; turn < 3; ++turn) {
    if (lane == turn) of_warp[warp] = in[threadIdx.x];
    __syncwarp();
    sum += of_warp[warp];
    __syncwarp();
  }
  out[threadIdx.x] = sum;
}

__global__ void other_warp_writes_after_syncwarp(float* out, const float* in) {
  __shared__ float of_warp[kCaseThreads / 32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) of_warp[warp] = in[threadIdx.x];
  __syncwarp();
  out[threadIdx.x] = of_warp[(warp + 1) % (kCaseThreads / 32)];
}

__global__ void divergent_barrier(float* out, const float* in) {
  if (threadIdx.x < 128) {
    __syncthreads();
    out[threadIdx.x] = in[threadIdx.x];
  } else {
    __syncthreads();
    out[threadIdx.x] = 0;
  }
}

__global__ void barrier_after_early_end(float* out, const float* in) {
  __shared__ float room[kCaseThreads];
  if (threadIdx.x >= 128) return;
  room[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = room[127 - threadIdx.x];
}

__global__ void half_a_warp_in_a_shuffle(float* out, const float* in) {
  float value = in[threadIdx.x];
  if (threadIdx.x % 32 < 16) value += __shfl_xor_sync(kAllLanes, value, 1);
  __syncthreads();
  out[threadIdx.x] = value;
}

__global__ void half_a_warp_with_its_mask(float* out, const float* in) {
  float value = in[threadIdx.x];
  if (threadIdx.x % 32 < 16) value += __shfl_xor_sync(0xffffu, value, 1);
  __syncthreads();
  out[threadIdx.x] = value;
}

__global__ void mask_without_the_caller(float* out, const float* in) {
  out[threadIdx.x] = __shfl_xor_sync(0xffffu, in[threadIdx.x], 1);
}

__global__ void shuffle_from_a_lane_outside(float* out, const float* in) {
  float value = in[threadIdx.x];
  if (threadIdx.x % 32 < 16) value = __shfl_sync(0xffffu, value, 20);
  out[threadIdx.x] = value;
}

__global__ void different_operations(float* out, const float* in) {
  float value = in[threadIdx.x];
  if (threadIdx.x % 2 == 0)
    value += __shfl_xor_sync(kAllLanes, value, 1);
  else
    value += static_cast<float>(__ballot_sync(kAllLanes, 1));
  out[threadIdx.x] = value;
}

__global__ void shuffles_at_different_places(float* out, const float* in) {
  float value = in[threadIdx.x];
  if (threadIdx.x % 2 == 0)
    value += __shfl_xor_sync(kAllLanes, value, 1);
  else
    value -= __shfl_xor_sync(kAllLanes, value, 1);
  out[threadIdx.x] = value;
}

__global__ void write_past_the_end(float* out, const float* in) { out[threadIdx.x + 1] = in[threadIdx.x]; }

__global__ void read_past_the_end(float* out, const float* in) {
  out[threadIdx.x] = in[kCaseInputs - kCaseThreads + 1 + threadIdx.x];
}

__global__ void past_the_dynamic_shared_memory(float* out, const float* in) {
  auto* const room = dynamic_shared<float>();
  const unsigned at = kCaseSharedBytes / 4 - kCaseThreads + 1 + threadIdx.x;
  room[at] = in[threadIdx.x];
  out[threadIdx.x] = room[at];
}

__global__ void shared_memory_that_nobody_wrote(float* out, const float*) {
  __shared__ float room[kCaseThreads];
  if (threadIdx.x < 128) room[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = room[threadIdx.x];
}

/// What the block before left there does not count.
__global__ void shared_memory_of_another_block(float* out, const float*) {
  __shared__ float room[kCaseThreads];
  if (blockIdx.x == 1) room[threadIdx.x] = 1;
  __syncthreads();
  if (blockIdx.x != 1) out[threadIdx.x] = room[threadIdx.x];
}

__global__ void misaligned(float* out, const float* in) {
  if (threadIdx.x < 64)
    *reinterpret_cast<double*>(out + 1 + 2 * threadIdx.x) = static_cast<double>(in[threadIdx.x]);
}

__global__ void misaligned_pack(float* out, const float* in) {
  float pack[4];
  cartan::kernels::warp::load16(pack, in + 1 + 4 * (threadIdx.x % 128));
  out[threadIdx.x] = pack[3];
}

__global__ void blocks_write_the_same(float* out, const float* in) { out[threadIdx.x] = in[threadIdx.x]; }

__global__ void block_reads_what_another_wrote(float* out, const float*) {
  if (blockIdx.x == 0) out[threadIdx.x] = 1;
  if (blockIdx.x == 1 && out[threadIdx.x] > 2) out[threadIdx.x] = 0;
}

__global__ void blocks_add_atomically(float* out, const float* in) {
  atomicAdd(&out[threadIdx.x], in[threadIdx.x]);
}

__global__ void plain_read_beside_atomics(float* out, const float* in) {
  atomicAdd(&out[threadIdx.x], in[threadIdx.x]);
  if (out[(threadIdx.x + 1) % kCaseThreads] > 1e9f) atomicExch(&out[threadIdx.x], 0.0f);
}

__global__ void copy_without_a_wait(float* out, const float* in) {
  __shared__ __align__(16) float room[4 * kCaseThreads];
  cp_async16(&room[threadIdx.x * 4], in + threadIdx.x * 4);
  cp_async_commit();
  __syncthreads();
  out[threadIdx.x] = room[(threadIdx.x * 4 + 4) % (4 * kCaseThreads)];
  cp_async_wait<0>();
}

__global__ void copy_without_a_barrier(float* out, const float* in) {
  __shared__ __align__(16) float room[4 * kCaseThreads];
  cp_async16(&room[threadIdx.x * 4], in + threadIdx.x * 4);
  cp_async_commit();
  cp_async_wait<0>();
  out[threadIdx.x] = room[(threadIdx.x * 4 + 4) % (4 * kCaseThreads)];
}

__global__ void copy_that_is_never_committed(float* out, const float* in) {
  __shared__ __align__(16) float room[4 * kCaseThreads];
  cp_async16(&room[threadIdx.x * 4], in + threadIdx.x * 4);
  cp_async_wait<0>();
  out[threadIdx.x] = 1;
}

/// The next copy into a buffer begins while others may still read it; it is waited for behind a barrier.
__global__ void copy_overtakes_readers(float* out, const float* in) {
  __shared__ __align__(16) float room[4 * kCaseThreads];
  float sum = 0;
  for (int round = 0; round < 2; ++round) {
    cp_async16(&room[threadIdx.x * 4], in + threadIdx.x * 4);
    cp_async_commit();
    if (round > 0) __syncthreads();
    cp_async_wait<0>();
    __syncthreads();
    sum += room[(threadIdx.x * 4 + 4) % (4 * kCaseThreads)];
  }
  out[threadIdx.x] = sum;
}

/// Two buffers: one is read while the other is filled.
__global__ void copies_in_turn(float* out, const float* in) {
  __shared__ __align__(16) float room[2][4 * kCaseThreads];
  const unsigned mine = threadIdx.x * 4, next = (mine + 4) % (4 * kCaseThreads);
  float sum = 0;
  cp_async16(&room[0][mine], in + mine);
  cp_async_commit();
  for (int round = 0; round < 4; ++round) {
    if (round < 3) cp_async16(&room[(round + 1) % 2][mine], in + mine);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    sum += room[round % 2][next];
    __syncthreads();
  }
  cp_async_wait<0>();
  out[threadIdx.x] = sum;
}

}  // namespace

std::vector<Case> cases() {
  return {
      {"NoBarrier", no_barrier, 1, "shared memory"},
      {"NoBarrierBeforeReuse", no_barrier_before_reuse, 1, "in shared memory"},
      {"BarrierBeforeReuse", barrier_before_reuse},
      {"LanesInLockStep", lanes_in_lock_step, 1, "in shared memory"},
      {"LanesAfterSyncwarp", lanes_after_syncwarp},
      {"LanesAfterShuffle", lanes_after_shuffle, 1, "race: read after write in shared memory"},
      {"LaneWritesWhatTheWarpHasRead", lane_writes_what_the_warp_has_read},
      {"OtherWarpWritesAfterSyncwarp", other_warp_writes_after_syncwarp, 1, "shared memory"},
      {"DivergentBarrier", divergent_barrier, 1,
       "divergent barrier: other threads of the block wait in __syncthreads at"},
      {"BarrierAfterEarlyEnd", barrier_after_early_end},
      {"HalfAWarpInAShuffle", half_a_warp_in_a_shuffle, 1, "deadlock: no thread of the block can go on\n"},
      {"HalfAWarpWithItsMask", half_a_warp_with_its_mask},
      {"MaskWithoutTheCaller", mask_without_the_caller, 1, "the calling lane is not in its own mask"},
      {"ShuffleFromALaneOutside", shuffle_from_a_lane_outside, 1,
       "shuffle reads a lane that does not take part"},
      {"DifferentOperations", different_operations, 1, "lanes of one mask meet in different operations"},
      {"ShufflesAtDifferentPlaces", shuffles_at_different_places, 1,
       "lanes of one mask meet at different places"},
      {"WritePastTheEnd", write_past_the_end, 1, "write outside of any allocation"},
      {"ReadPastTheEnd", read_past_the_end, 1, "read outside of any allocation"},
      {"PastTheDynamicSharedMemory", past_the_dynamic_shared_memory, 1,
       "access past the dynamic shared memory of the launch"},
      {"SharedMemoryThatNobodyWrote", shared_memory_that_nobody_wrote, 1,
       "read of shared memory that was never written"},
      {"SharedMemoryOfAnotherBlock", shared_memory_of_another_block, 3,
       "read of shared memory that was never written"},
      {"Misaligned", misaligned, 1, "misaligned access of 8 bytes"},
      {"MisalignedPack", misaligned_pack, 1, "misaligned access of 16 bytes"},
      {"BlocksWriteTheSame", blocks_write_the_same, 4, "race: write after write in global memory"},
      {"BlockReadsWhatAnotherWrote", block_reads_what_another_wrote, 2, "in global memory"},
      {"BlocksAddAtomically", blocks_add_atomically, 4},
      {"PlainReadBesideAtomics", plain_read_beside_atomics, 4, "in global memory"},
      {"CopyWithoutAWait", copy_without_a_wait, 1, "race: write after read in shared memory"},
      {"CopyWithoutABarrier", copy_without_a_barrier, 1, "shared memory"},
      {"CopyThatIsNeverCommitted", copy_that_is_never_committed, 1,
       "a thread ended with asynchronous copies that it did not wait for"},
      {"CopyOvertakesReaders", copy_overtakes_readers, 1, "in shared memory"},
      {"CopiesInTurn", copies_in_turn},
  };
}

}  // namespace emu::testing
