// bf16 to the 8-bit types of matrix products (e4m3, e5m2) with one factor for the whole tensor, and the
// largest magnitude met; as the tensor lies, or transposed.
//
// A block takes tiles of 128 rows and 64 columns, a thread four rows of eight columns: four 16-byte loads, 32
// conversions. As it lies: four 8-byte stores, eight threads side by side write 64 bytes. Transposed: the
// four codes of a column are a word of shared memory; word w of column c lies at c * 32 + (w ^ 4 (c / 8)), so
// that neither the stores of words nor the 16-byte loads that gather a column's codes meet in a bank; eight
// threads side by side write the 128 bytes of a column. Maxima of non-negative floats are those of their
// bits, so atomics give the same bits in any order.
//
// Reads 2 bytes and writes 1 for each element; some 5 instructions with the conversion of two at a time that
// sm_89 has. Memory bound: 80 to 90 % of the peak bandwidth, transposed 75 to 85 %. On sm_80 conversion is a
// function of some hundred instructions; no product there needs it.
//
// Source: Micikevicius et al. 2022, arXiv:2209.05433.
#include "fp8.hpp"

#include <cuda_fp8.h>

#include <algorithm>

#include "octet.cuh"

namespace cartan::kernels {
namespace {

constexpr int kTileRows = 128, kTileCols = 64, kThreads = 256;
constexpr int kRows = 4;                     // of a thread
constexpr int kOctets = kTileCols / kOctet;  // of a tile's row
constexpr int kWords = kTileRows / kRows;    // of a tile's column of codes
constexpr int kCodes = 16;                   // that a thread stores at once when it transposes
constexpr int kStores = kTileCols * kTileRows / (kCodes * kThreads);
// Enough blocks for every GPU; few, because each ends in an atomic on the same address.
constexpr Index kMostBlocks = 2048;
static_assert(kThreads == kOctets * kWords);

/// Four rows of eight columns; rows and columns that do not exist are 0.
struct Patch {
  Octet row[kRows];
};

__device__ __forceinline__ unsigned magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

__device__ __forceinline__ unsigned warp_max(unsigned x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    x = ::max(x, __shfl_xor_sync(kAllLanes, x, distance));
  return x;
}

/// The codes of a and b, that of a in the lower byte.
template <__nv_fp8_interpretation_t kType>
__device__ __forceinline__ unsigned convert_pair(float a, float b) {
  return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, kType);
}

template <__nv_fp8_interpretation_t kType>
__device__ __forceinline__ unsigned convert_four(float a, float b, float c, float d) {
  return convert_pair<kType>(a, b) | convert_pair<kType>(c, d) << 16;
}

/// The patch as it lies. `to`: where its first code goes.
template <__nv_fp8_interpretation_t kType>
__device__ __forceinline__ void store_rows(const Patch& patch, unsigned char* to, Index stride) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float(&x)[kOctet] = patch.row[r].at;
    const unsigned codes[] = {convert_four<kType>(x[0], x[1], x[2], x[3]),
                              convert_four<kType>(x[4], x[5], x[6], x[7])};
    HalfPack<unsigned char> half_pack;
    memcpy(half_pack.at, codes, sizeof codes);
    store_half_pack(to + r * stride, half_pack);
  }
}

/// The tile of which this thread has a patch, with rows and columns swapped: of as many rows and columns as
/// are left. `to`: where its first code goes.
template <__nv_fp8_interpretation_t kType>
__device__ __forceinline__ void store_transposed(const Patch& patch, unsigned char* to, Index stride,
                                                 Index rows_left, Index cols_left) {
  __shared__ __align__(16) unsigned words[kTileCols * kWords];
  const int octet = static_cast<int>(threadIdx.x) % kOctets, word = static_cast<int>(threadIdx.x) / kOctets;
  __syncthreads();  // the tile before may still be read
#pragma unroll
  for (int i = 0; i < kOctet; ++i)
    words[(octet * kOctet + i) * kWords + (word ^ 4 * octet)] =
        convert_four<kType>(patch.row[0].at[i], patch.row[1].at[i], patch.row[2].at[i], patch.row[3].at[i]);
  __syncthreads();
#pragma unroll
  for (int store = 0; store < kStores; ++store) {
    const int piece = static_cast<int>(threadIdx.x) + store * kThreads;
    const int col = piece / (kTileRows / kCodes), part = piece % (kTileRows / kCodes);
    if (col >= cols_left || part * kCodes >= rows_left) continue;
    unsigned codes[kCodes / 4];
    warp::load16(codes, words + col * kWords + (4 * part ^ 4 * (col / kOctet)));
    warp::store16(to + col * stride + part * kCodes, codes);
  }
}

template <__nv_fp8_interpretation_t kType, bool kTransposed>
__global__ void __launch_bounds__(kThreads)
    to_fp8_kernel(const bf16* x, Index stride, bool packed, unsigned char* codes, Index codes_stride,
                  Index rows, Index cols, const float* scale, unsigned* amax) {
  __shared__ unsigned warps[kThreads / kWarp];
  const int octet = static_cast<int>(threadIdx.x) % kOctets, word = static_cast<int>(threadIdx.x) / kOctets;
  const float factor = *scale;
  const Index tiles_across = (cols + kTileCols - 1) / kTileCols;
  const Index tiles = tiles_across * ((rows + kTileRows - 1) / kTileRows);
  unsigned largest = 0;
  for (Index tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Index tile_row = tile / tiles_across * kTileRows, tile_col = tile % tiles_across * kTileCols;
    const Index row = tile_row + word * kRows, col = tile_col + octet * kOctet;
    Patch patch;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      patch.row[r] = load_octet(x + (row + r) * stride + col, row + r < rows ? cols - col : 0, packed);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kOctet; ++i) {
        largest = ::max(largest, magnitude(patch.row[r].at[i]));
        patch.row[r].at[i] *= factor;
      }
    }
    if constexpr (kTransposed) {
      store_transposed<kType>(patch, codes + tile_col * codes_stride + tile_row, codes_stride,
                              rows - tile_row, cols - tile_col);
    } else {
      if (row < rows && col < cols) store_rows<kType>(patch, codes + row * codes_stride + col, codes_stride);
    }
  }
  largest = warp_max(largest);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  if (lane == 0) warps[warp] = largest;
  __syncthreads();
  if (warp > 0) return;
  largest = warp_max(lane < kThreads / kWarp ? warps[lane] : 0u);
  if (lane == 0) atomicMax(amax, largest);
}

}  // namespace

void to_fp8(ConstMatrix x, Matrix codes, bool transposed, const Fp8Scale& scale, cudaStream_t stream) {
  const auto* const in = static_cast<const bf16*>(x.data);
  auto* const out = static_cast<unsigned char*>(codes.data);
  const Index tiles = ((x.rows + kTileRows - 1) / kTileRows) * ((x.cols + kTileCols - 1) / kTileCols);
  const Grid grid{dim3(static_cast<unsigned>(std::min(tiles, kMostBlocks))), kThreads};
  const auto run = [&](auto* kernel) {
    launch("to_fp8", kernel, grid, stream, in, x.stride, is_packed(in, x.stride), out, codes.stride, x.rows,
           x.cols, scale.scale, reinterpret_cast<unsigned*>(scale.amax));
  };
  if (codes.dtype == DType::e4m3)
    transposed ? run(to_fp8_kernel<__NV_E4M3, true>) : run(to_fp8_kernel<__NV_E4M3, false>);
  else
    transposed ? run(to_fp8_kernel<__NV_E5M2, true>) : run(to_fp8_kernel<__NV_E5M2, false>);
}

}  // namespace cartan::kernels
