// A thread of an emulated block, and what it can ask of the block around it. device.h gives these functions
// the names that they have in CUDA C++.
//
// A thread is a fiber: it runs until it must meet others, and nothing interrupts it before.
#pragma once

#include <vector_types.h>

#include <cstddef>

namespace emu {

/// A place in the source of a kernel.
struct Where {
  const char* file;
  int line;
};

/// What threads meet in.
enum class Sync { block, block_or, block_and, block_count, syncwarp, shuffle, ballot, mma, ldmatrix };

struct Thread {
  uint3 index;
  unsigned rank, lane, warp;  ///< in the block, in the warp; of the block
  /// Barriers of the block, and of the warp since then, that the thread has passed: what lies between them
  /// can race.
  unsigned block_epoch, warp_epoch;
};

/// The thread that runs, null outside of kernels.
extern thread_local constinit Thread* self;

/// The kernel cannot go on: ends it with a report. Does not return to the kernel.
[[noreturn]] void fail(Where where, const char* what);

/// Waits for all threads of the block that have not ended. The predicates combined: or, and, their count.
int meet_block(Sync kind, int predicate, Where where);

// Each of these waits until all lanes of `mask` that have not ended are there.

void sync_warp(unsigned mask, Where where);
/// Replaces the value by that of lane `source`; leaves it where `is_in_range` says that there is no such
/// lane.
void shuffle(unsigned mask, void* value, unsigned bytes, unsigned source, bool is_in_range, Where where);
/// The lanes whose predicate is not zero.
unsigned ballot(unsigned mask, int predicate, Where where);
/// d += a b of a whole warp (kernels/warp/mma.cuh): the elements of fragments, two a register, in fp32.
void multiply_fragments(float (&d)[4], const float (&a)[8], const float (&b)[4], Where where);
/// Four 8x8 matrices of 16-bit elements, each lane with the address of a row.
void load_matrices(unsigned (&r)[4], const void* shared_row, bool transposed, Where where);

/// The dynamic shared memory of the launch. Filled with NaN before each block.
void* dynamic_shared();

/// One access of 16 bytes, for the checker too; the compiler would make several of it.
void load16(void* to, const void* from);
void store16(void* to, const void* from);

/// A copy of 16 bytes that ends in copy_async_wait: until then its target reads as NaN.
void copy_async16(void* shared, const void* global);
void copy_async_commit();
/// Ends committed groups of copies until `left` of them are under way.
void copy_async_wait(unsigned left);

/// Tells the checker about an atomic operation.
void note_atomic(const void* address, unsigned bytes);

}  // namespace emu
