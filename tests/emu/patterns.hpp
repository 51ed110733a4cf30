// Kernels with known access patterns (patterns.cu): each copies floats, kPatternThreads in each block.
#pragma once

namespace emu::testing {

inline constexpr unsigned kPatternThreads = 64;

using PatternKernel = void (*)(float* out, const float* in);

/// 16 bytes at once: four times kPatternThreads floats.
extern const PatternKernel copy_packs;
/// Through shared memory by columns of a tile of 32x32: a whole warp in one bank, or with padding in 32
/// banks. One warp.
extern const PatternKernel transpose_with_conflicts, transpose_padded;
/// Every eighth float: a sector for each lane.
extern const PatternKernel copy_strided;
/// One float for each thread, from a place where a warp's floats lie in 5 sectors.
extern const PatternKernel copy_shifted;
/// The same float for every thread.
extern const PatternKernel copy_first;
/// 16 bytes of shared memory at once, in order.
extern const PatternKernel copy_packs_through_shared;
/// Every second pack of eight, by asynchronous copies into rows of a padded tile.
extern const PatternKernel copy_packs_async;

}  // namespace emu::testing
