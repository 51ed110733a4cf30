// Dropout by counter-based random numbers: an element stays or becomes 0 by 32 random bits that belong to its
// row and column.
//
// A thread moves one chunk of 16 bytes. It reads and writes each element once; four elements share ten rounds
// of Philox, some 20 instructions an element, which is less than the memory takes in 16 bits and about as
// much in 32. Memory bound without a seed: 85 to 90 % of the peak bandwidth.
// Source: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox4x32-10).
#include "dropout.hpp"

#include "rows.cuh"

namespace cartan::kernels {
namespace {

struct Words {
  std::uint32_t at[4];
};

__device__ __forceinline__ std::uint32_t low_word(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
__device__ __forceinline__ std::uint32_t high_word(std::uint64_t x) {
  return static_cast<std::uint32_t>(x >> 32);
}

__device__ __forceinline__ Words philox(Words counter, std::uint64_t seed) {
  std::uint32_t first = low_word(seed), second = high_word(seed);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter.at[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter.at[2];
    counter = {{high_word(b) ^ counter.at[1] ^ first, low_word(b), high_word(a) ^ counter.at[3] ^ second,
                low_word(a)}};
    first += 0x9E3779B9u;
    second += 0xBB67AE85u;
  }
  return counter;
}

__device__ __forceinline__ std::uint32_t word_of(const Words& words, unsigned number) {
  return number < 2 ? (number == 0 ? words.at[0] : words.at[1]) : (number == 2 ? words.at[2] : words.at[3]);
}

// A thread reads all of its elements before it writes: out may be x.
template <bool kPacked, class T>
__global__ void __launch_bounds__(kRowThreads)
    dropout_kernel(const T* x, Index x_stride, const std::int32_t* rows, DropoutRule rule, T* out,
                   Index out_stride, Index row_count, Index cols, int columns_log2) {
  constexpr int kCount = kPack<T>;
  const RowPlace place(columns_log2);
  const Index first = place.chunk * kCount;
  if (place.row >= row_count || first >= cols) return;
  float values[kCount];
  load_chunk<kPacked>(x + place.row * x_stride, first, cols, values);
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] *= rule.factor;
  if (rule.seed != nullptr) {
    const std::uint64_t seed = *rule.seed;
    const auto row = static_cast<std::uint32_t>(rows[place.row]);
    const auto column = static_cast<std::uint64_t>(rule.first_column + first);
    Words words{};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const auto number = static_cast<unsigned>((column + i) % 4);
      if (i == 0 || number == 0)
        words =
            philox({{low_word((column + i) / 4), row, low_word(rule.stream), high_word(rule.stream)}}, seed);
      if (word_of(words, number) < rule.threshold) values[i] = 0;
    }
  }
  store_chunk<kPacked>(out + place.row * out_stride, first, cols, values);
}

}  // namespace

void dropout(ConstMatrix x, std::span<const std::int32_t> rows, const DropoutRule& rule, Matrix out,
             cudaStream_t stream) {
  dispatch(x.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* const from = static_cast<const T*>(x.data);
    auto* const to = static_cast<T*>(out.data);
    const RowGrid grid = row_grid(x.rows, (x.cols + kPack<T> - 1) / kPack<T>);
    with_bool(is_packed(from, x.stride) && is_packed(to, out.stride), [&](auto packed) {
      launch("dropout", dropout_kernel<packed(), T>, grid.grid, stream, from, x.stride, rows.data(), rule, to,
             out.stride, x.rows, x.cols, grid.columns_log2);
    });
  });
}

}  // namespace cartan::kernels
