// Rounding to 8 bits, the reference for GPUs.
#include <atomic>
#include <bit>

#include "cartan/core/bfloat16.hpp"
#include "cartan/core/float8.hpp"
#include "device/cpu/linear.hpp"
#include "device/cpu/partition.hpp"

namespace cartan::device::cpu {
namespace {

// Bits of floats without sign are ordered like the numbers, NaN last.
void raise(std::atomic<std::uint32_t>& largest, std::uint32_t bits) {
  std::uint32_t before = largest;
  while (before < bits && !largest.compare_exchange_weak(before, bits)) {
  }
}

template <class Code>
void round_to(const Context& context, ConstMatrix x, Matrix codes, bool transposed, const Fp8Scale& scale) {
  const float factor = *scale.scale;
  const auto* const in = static_cast<const BFloat16*>(x.data);
  auto* const out = static_cast<std::uint8_t*>(codes.data);
  const Index row_step = transposed ? 1 : codes.stride, col_step = transposed ? codes.stride : 1;
  std::atomic<std::uint32_t> largest{std::bit_cast<std::uint32_t>(*scale.amax)};
  for_row_blocks(context, x.rows, x.cols, [&](Index begin, Index end) {
    std::uint32_t block_largest = 0;
    for (Index r = begin; r < end; ++r)
      for (Index c = 0; c < x.cols; ++c) {
        const float value = to_float(in[r * x.stride + c]);
        block_largest = std::max(block_largest, std::bit_cast<std::uint32_t>(value) & 0x7fffffffu);
        out[r * row_step + c * col_step] = Code::from(value * factor).bits;
      }
    raise(largest, block_largest);
  });
  *scale.amax = std::bit_cast<float>(largest.load());
}

}  // namespace

void to_fp8(const Context& context, ConstMatrix x, Matrix codes, bool transposed, const Fp8Scale& scale) {
  if (codes.dtype == DType::e4m3)
    round_to<Float8E4M3>(context, x, codes, transposed, scale);
  else
    round_to<Float8E5M2>(context, x, codes, transposed, scale);
}

}  // namespace cartan::device::cpu
