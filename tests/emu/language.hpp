// Kernels that use what CUDA C++ has beyond C++ (language.cu). Each runs as one block unless it says
// otherwise.
#pragma once

#include <cstdint>

namespace emu::testing {

/// One warp: out[lane * kShuffles + i] is what shuffle i gives the lane that has value 10 * lane.
inline constexpr int kShuffles = 8;
void shuffles(float* out);
void double_shuffles(double* out);
void wide_shuffles(std::uint64_t* out);
void bf16_shuffles(float* out);

/// One warp: ballot of odd lanes, of odd lanes among the lower half, any and all of "lane < 32", of "lane ==
/// 3".
inline constexpr int kVotes = 6;
void votes(unsigned* out);

/// 100 threads: or, and, count of predicates; out[thread * kBarrierResults + i].
inline constexpr int kBarrierResults = 4;
void barriers(int* out);

/// 4 blocks of 64 threads: sums, extremes and bits of what each thread gives.
struct AtomicResults {
  int sum, difference, largest, smallest, all_bits, common_bits, odd_bits, exchanged, first;
  unsigned unsigned_sum;
  unsigned long long wide_sum, wide_largest;
  float float_sum;
  double double_sum;
};
void atomics(AtomicResults* results);

/// Each thread appends its number in the grid. 3 blocks of 40 threads.
inline constexpr int kOrderBlocks = 3, kOrderThreads = 40;
struct ExecutionOrder {
  int count;
  int numbers[kOrderBlocks * kOrderThreads];
};
void append_numbers(ExecutionOrder* order);

/// A block of 2x3x5 threads in a grid of 2x2x2 blocks: counts each index.
void count_indices(int* counts);

/// 4 KB of parameters: adds them to out, one each thread. A grid constant.
struct LargeParameter {
  int values[1000];
};
void add_parameters(int* out, const LargeParameter& parameter);

/// Functions of numbers and bits, of the inputs 0.75 and 0x00f0.
inline constexpr int kNumberResults = 24;
void number_functions(double* out);

/// out = fragments of one product of tiles a [16, 16], b [16, 8] in row order, in bf16 (as_bf16) or fp16.
void multiply_tiles(float* out, const float* a, const float* b, bool as_bf16);
/// The registers of all lanes after ldmatrix of four 8x8 matrices that hold 0, 1, 2... and after its
/// transposed form.
void load_tiles(unsigned* out, unsigned* transposed);

/// NaN where a thread reads dynamic shared memory, and the target of a copy, too early: all of out.
void read_too_early(float* out, const float* in);

}  // namespace emu::testing
