#include "language.hpp"

#include "base.cuh"

#include <warp/memory.cuh>
#include <warp/mma.cuh>

namespace emu::testing {
namespace {

namespace warp = cartan::kernels::warp;
using cartan::kernels::bf16;
using cartan::kernels::Grid;
using cartan::kernels::half;
using cartan::kernels::kAllLanes;

template <class... Parameters, class... Arguments>
void run(void (*kernel)(Parameters...), const dim3& blocks, const dim3& threads, Arguments... arguments) {
  cartan::kernels::launch("a test", kernel, Grid{blocks, threads, 1024}, nullptr, arguments...);
}

template <class T, class Result>
__global__ void shuffle_kernel(Result* out) {
  const int lane = static_cast<int>(threadIdx.x);
  const T value = static_cast<T>(static_cast<float>(10 * lane));
  const T found[kShuffles] = {
      __shfl_sync(kAllLanes, value, 5),          __shfl_sync(kAllLanes, value, lane + 33),
      __shfl_sync(kAllLanes, value, 3, 8),       __shfl_up_sync(kAllLanes, value, 2),
      __shfl_down_sync(kAllLanes, value, 3, 16), __shfl_xor_sync(kAllLanes, value, 16),
      __shfl_xor_sync(kAllLanes, value, 8, 8),   __shfl_up_sync(kAllLanes, value, 1, 4)};
  for (int i = 0; i < kShuffles; ++i)
    out[lane * kShuffles + i] = static_cast<Result>(static_cast<float>(found[i]));
}

__global__ void vote_kernel(unsigned* out) {
  const int lane = static_cast<int>(threadIdx.x);
  unsigned found[kVotes] = {};
  found[0] = __ballot_sync(kAllLanes, lane % 2);
  if (lane < 16) found[1] = __ballot_sync(0xffffu, lane % 2);
  found[2] = static_cast<unsigned>(__any_sync(kAllLanes, lane < 0));
  found[3] = static_cast<unsigned>(__any_sync(kAllLanes, lane == 3));
  found[4] = static_cast<unsigned>(__all_sync(kAllLanes, lane < 32));
  found[5] = static_cast<unsigned>(__all_sync(kAllLanes, lane != 3));
  if (lane == 0)
    for (int i = 0; i < kVotes; ++i) out[i] = found[i];
}

__global__ void barrier_kernel(int* out) {
  const int thread = static_cast<int>(threadIdx.x);
  int* const mine = out + thread * kBarrierResults;
  mine[0] = __syncthreads_or(thread == 70);
  mine[1] = __syncthreads_or(thread < 0);
  mine[2] = __syncthreads_and(thread != 70);
  mine[3] = __syncthreads_count(thread % 3 == 0);
}

__global__ void atomic_kernel(AtomicResults* r) {
  const int number = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(&r->sum, number);
  atomicSub(&r->difference, 1);
  atomicMax(&r->largest, number);
  atomicMin(&r->smallest, -number);
  atomicOr(&r->all_bits, 1 << number % 20);
  atomicAnd(&r->common_bits, ~(1 << number % 4));
  atomicXor(&r->odd_bits, number);
  atomicExch(&r->exchanged, 7);
  atomicCAS(&r->first, 0, 1 + number);
  atomicAdd(&r->unsigned_sum, 3u);
  atomicAdd(&r->wide_sum, 1ull << 32);
  atomicMax(&r->wide_largest, static_cast<unsigned long long>(number) << 40);
  atomicAdd(&r->float_sum, 0.5f);
  atomicAdd(&r->double_sum, 0.25);
}

__global__ void append_kernel(ExecutionOrder* order) {
  const int place = atomicAdd(&order->count, 1);
  order->numbers[place] = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

__global__ void index_kernel(int* counts) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  atomicAdd(&counts[block * (blockDim.x * blockDim.y * blockDim.z) + thread], 1);
}

__global__ void parameter_kernel(int* out, const __grid_constant__ LargeParameter parameter) {
  out[threadIdx.x] += parameter.values[threadIdx.x];
}

__global__ void number_kernel(double* out) {
  const float x = 0.75f;
  const unsigned bits = 0xf0;
  const double found[kNumberResults] = {exp2f(-x * 4),
                                        expf(0.0f),
                                        logf(1.0f),
                                        fmaf(x, 4.0f, 1.0f),
                                        rsqrtf(4.0f),
                                        __fmul_rn(x, x),
                                        __uint_as_float(__float_as_uint(x)),
                                        __int_as_float(__float_as_int(-x)),
                                        static_cast<double>(__popc(bits)),
                                        static_cast<double>(__popcll(~0ull)),
                                        static_cast<double>(__clz(static_cast<int>(bits))),
                                        static_cast<double>(__ffs(static_cast<int>(bits))),
                                        static_cast<double>(__ffs(0)),
                                        static_cast<double>(__clzll(1)),
                                        max(x, NAN),
                                        static_cast<double>(max(3, -5)),
                                        static_cast<double>(min(3u, 5u)),
                                        __dadd_rn(x, 1e-9),
                                        __fma_rn(x, 2.0, 1.0),
                                        static_cast<double>(__umulhi(1u << 31, 6)),
                                        __bfloat162float(__float2bfloat16(1.00390625f)),
                                        __half2float(__float2half(1.00048828125f)),
                                        __saturatef(1.5f),
                                        static_cast<double>(__float2int_rn(2.5f))};
  for (int i = 0; i < kNumberResults; ++i) out[i] = found[i];
}

template <class T>
__device__ unsigned pair_of(float first, float second) {
  const T pair[2] = {cartan::kernels::from_float<T>(first), cartan::kernels::from_float<T>(second)};
  unsigned packed;
  memcpy(&packed, pair, sizeof packed);
  return packed;
}

template <class T>
__global__ void multiply_kernel(float* out, const float* a, const float* b) {
  const int g = static_cast<int>(threadIdx.x) / 4, t = static_cast<int>(threadIdx.x) % 4;
  const auto of_a = [&](int row, int col) { return pair_of<T>(a[row * 16 + col], a[row * 16 + col + 1]); };
  const auto of_b = [&](int row) { return pair_of<T>(b[row * 8 + g], b[(row + 1) * 8 + g]); };
  const unsigned left[4] = {of_a(g, 2 * t), of_a(g + 8, 2 * t), of_a(g, 2 * t + 8), of_a(g + 8, 2 * t + 8)};
  const unsigned right[2] = {of_b(2 * t), of_b(2 * t + 8)};
  float d[4] = {1, 1, 1, 1};
  warp::mma_16x8x16<T>(d, left, right);
  for (int i = 0; i < 4; ++i) out[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];
}

__global__ void load_kernel(unsigned* out, unsigned* transposed) {
  __shared__ __align__(16) unsigned short tile[4 * 64];
  for (unsigned i = threadIdx.x; i < 4 * 64; i += 32) tile[i] = static_cast<unsigned short>(i);
  __syncwarp();
  unsigned r[4];
  warp::ldmatrix(r, tile + 8 * threadIdx.x);
  for (unsigned i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = r[i];
  warp::ldmatrix_transposed(r, tile + 8 * threadIdx.x);
  for (unsigned i = 0; i < 4; ++i) transposed[4 * threadIdx.x + i] = r[i];
}

__global__ void read_too_early_kernel(float* out, const float* in) {
  float* const room = warp::dynamic_shared<float>();
  out[2 * threadIdx.x] = room[threadIdx.x];
  __syncthreads();
  room[4 * threadIdx.x] = 1;
  warp::cp_async16(room + 4 * threadIdx.x, in);
  warp::cp_async_commit();
  out[2 * threadIdx.x + 1] = room[4 * threadIdx.x];
  warp::cp_async_wait<0>();
}

}  // namespace

void shuffles(float* out) { run(shuffle_kernel<float, float>, 1, 32, out); }
void double_shuffles(double* out) { run(shuffle_kernel<double, double>, 1, 32, out); }
void wide_shuffles(std::uint64_t* out) { run(shuffle_kernel<unsigned long long, std::uint64_t>, 1, 32, out); }
void bf16_shuffles(float* out) { run(shuffle_kernel<bf16, float>, 1, 32, out); }
void votes(unsigned* out) { run(vote_kernel, 1, 32, out); }
void barriers(int* out) { run(barrier_kernel, 1, 100, out); }
void atomics(AtomicResults* results) { run(atomic_kernel, 4, 64, results); }
void append_numbers(ExecutionOrder* order) { run(append_kernel, kOrderBlocks, kOrderThreads, order); }
void count_indices(int* counts) { run(index_kernel, dim3(2, 2, 2), dim3(2, 3, 5), counts); }
void add_parameters(int* out, const LargeParameter& parameter) {
  run(parameter_kernel, 1, 1000, out, parameter);
}
void number_functions(double* out) { run(number_kernel, 1, 1, out); }
void multiply_tiles(float* out, const float* a, const float* b, bool as_bf16) {
  run(as_bf16 ? multiply_kernel<bf16> : multiply_kernel<half>, 1, 32, out, a, b);
}
void load_tiles(unsigned* out, unsigned* transposed) { run(load_kernel, 1, 32, out, transposed); }
void read_too_early(float* out, const float* in) { run(read_too_early_kernel, 1, 64, out, in); }

}  // namespace emu::testing
