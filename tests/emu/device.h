// Forced into every kernels/*.cu that is compiled for the host (g++ -x c++ -include sim/device.h).
// It gives the CUDA C++ device language a meaning on the CPU: the threads of a block are fibers.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

namespace emu {

struct Where {
  const char* file;
  int line;
};
enum class Sync : int {
  block,
  block_or,
  block_and,
  block_count,
  syncwarp,
  shfl,
  ballot,
  any,
  all,
  reduce,
  match,
  mma,
  ldmatrix
};

struct Thread {
  uint3 thread_idx;
  unsigned rank, lane, warp;
  unsigned block_epoch = 0, warp_epoch = 0;  // barriers passed: used by the race detector
};
extern thread_local constinit Thread* self;

int block_barrier(Sync kind, int predicate, Where);
// Rendezvous of the lanes in `mask`; copies `bytes` from every lane, returns lane-indexed records of 64
// bytes.
struct Exchange {
  const unsigned char (*data)[64];
  unsigned arrived;
  void* handle;
};
Exchange exchange(unsigned mask, Sync kind, const void* src, unsigned bytes, Where);
void exchange_done(const Exchange&);
void fail(Where, const char* what);
void* dynamic_smem();
void named_barrier(int id, int threads, Where);
void atomic_access(const void* p, unsigned bytes);  // tells the race detector

// A launched kernel: its parameters by value, and how to call it with them.
struct Body {
  void (*invoke)(const void* fn, const void* args);
  const void* fn;
  unsigned bytes;
  alignas(16) unsigned char args[4096];
};
cudaError_t enqueue_kernel(const cudaLaunchConfig_t*, const Body&);

template <class... P, class... A>
cudaError_t launch(const cudaLaunchConfig_t* c, void (*kernel)(P...), A&&... a) {
  using Args = std::tuple<std::decay_t<P>...>;
  static_assert((std::is_trivially_copyable_v<std::decay_t<P>> && ...) && sizeof(Args) <= sizeof(Body::args));
  Body b{[](const void* fn, const void* args) {
           std::apply(reinterpret_cast<void (*)(P...)>(const_cast<void*>(fn)),
                      *static_cast<const Args*>(args));
         },
         reinterpret_cast<const void*>(kernel),
         sizeof(Args),
         {}};
  new (b.args) Args(static_cast<std::decay_t<P>>(std::forward<A>(a))...);
  return enqueue_kernel(c, b);
}

template <class T>
T shfl_from(unsigned mask, T v, unsigned src, bool ok, Where w) {
  static_assert(sizeof(T) <= 16 && std::is_trivially_copyable_v<T>);
  Exchange e = exchange(mask, Sync::shfl, &v, sizeof v, w);
  if (ok) {
    if (!(e.arrived >> src & 1)) fail(w, "shuffle reads a lane that does not take part");
    std::memcpy(&v, e.data[src], sizeof v);
  }
  exchange_done(e);
  return v;
}
template <class F>
__attribute__((no_sanitize("thread"))) auto atomic_rmw(auto* p, unsigned n, F f) {
  atomic_access(p, n);
  auto old = *p;
  *p = f(old);
  return old;
}
}  // namespace emu

#undef __shared__
#define __shared__ static thread_local
extern thread_local constinit uint3 threadIdx,
    blockIdx;  // variables, not macros: cudaLaunchConfig_t has members gridDim, blockDim
extern thread_local constinit dim3 blockDim, gridDim;
constexpr int warpSize = 32;
#define cudaLaunchKernelEx ::emu::launch
#undef __launch_bounds__
#define __launch_bounds__(...)

#define W_ const char *wf = __builtin_FILE(), int wl = __builtin_LINE()
#define w (emu::Where{wf, wl})
inline void __syncthreads(W_) { emu::block_barrier(emu::Sync::block, 0, w); }
inline int __syncthreads_or(int p, W_) { return emu::block_barrier(emu::Sync::block_or, p, w); }
inline int __syncthreads_and(int p, W_) { return emu::block_barrier(emu::Sync::block_and, p, w); }
inline int __syncthreads_count(int p, W_) { return emu::block_barrier(emu::Sync::block_count, p, w); }
inline void __syncwarp(unsigned m = 0xffffffffu, W_) {
  emu::exchange_done(emu::exchange(m, emu::Sync::syncwarp, nullptr, 0, w));
}
template <class T>
T __shfl_sync(unsigned m, T v, int src, int width = 32, W_) {
  unsigned l = emu::self->lane;
  return emu::shfl_from(m, v, (l & ~unsigned(width - 1)) + (unsigned(src) & unsigned(width - 1)), true, w);
}
template <class T>
T __shfl_up_sync(unsigned m, T v, unsigned d, int width = 32, W_) {
  unsigned l = emu::self->lane;
  return emu::shfl_from(m, v, l - d, (l & unsigned(width - 1)) >= d, w);
}
template <class T>
T __shfl_down_sync(unsigned m, T v, unsigned d, int width = 32, W_) {
  unsigned l = emu::self->lane;
  return emu::shfl_from(m, v, l + d, (l & unsigned(width - 1)) + d < unsigned(width), w);
}
template <class T>
T __shfl_xor_sync(unsigned m, T v, int x, int width = 32, W_) {
  unsigned l = emu::self->lane, s = l ^ unsigned(x);
  return emu::shfl_from(m, v, s, (s & ~unsigned(width - 1)) <= (l & ~unsigned(width - 1)), w);
}
inline unsigned __ballot_sync(unsigned m, int p, W_) {
  auto e = emu::exchange(m, emu::Sync::ballot, &p, 4, w);
  unsigned r = 0;
  for (int i = 0; i < 32; ++i)
    if (e.arrived >> i & 1) {
      int q;
      std::memcpy(&q, e.data[i], 4);
      r |= unsigned(q != 0) << i;
    }
  emu::exchange_done(e);
  return r;
}
inline int __any_sync(unsigned m, int p, W_) { return __ballot_sync(m, p, wf, wl) != 0; }
inline int __all_sync(unsigned m, int p, W_) { return __ballot_sync(m, !p, wf, wl) == 0; }
inline unsigned __activemask() { return 1u << emu::self->lane; }
#undef W_
#undef w
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() {}
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T v) {
  *p = v;
}
#define EMU_ATOMIC(name, expr)                                            \
  template <class T>                                                      \
  T name(T* p, std::type_identity_t<T> v) {                               \
    return emu::atomic_rmw(p, sizeof(T), [&](T o) -> T { return expr; }); \
  }
EMU_ATOMIC(atomicAdd, o + v)
EMU_ATOMIC(atomicMax, o > v ? o : v)
EMU_ATOMIC(atomicMin, o < v ? o : v)
EMU_ATOMIC(atomicExch, v)
EMU_ATOMIC(atomicOr, o | v)
template <class T>
T atomicCAS(T* p, std::type_identity_t<T> cmp, std::type_identity_t<T> v) {
  return emu::atomic_rmw(p, sizeof(T), [&](T o) { return o == cmp ? v : o; });
}

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __exp2f(float x) { return std::exp2(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __saturatef(float x) { return std::fmin(std::fmax(x, 0.f), 1.f); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline int __float_as_int(float f) { return std::bit_cast<int>(f); }
inline float __int_as_float(int i) { return std::bit_cast<float>(i); }
inline unsigned __float_as_uint(float f) { return std::bit_cast<unsigned>(f); }
inline float __uint_as_float(unsigned i) { return std::bit_cast<float>(i); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(unsigned(x)); }
inline int __ffs(int x) { return x ? std::countr_zero(unsigned(x)) + 1 : 0; }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(std::uint64_t(a) * b >> 32); }
template <class T, class U>
auto max(T a, U b) {
  return std::max<std::common_type_t<T, U>>(a, b);
}
template <class T, class U>
auto min(T a, U b) {
  return std::min<std::common_type_t<T, U>>(a, b);
}

namespace emu {
void cp_async16(void* smem, const void* global, const char* file = __builtin_FILE(),
                int line = __builtin_LINE());
void cp_async_commit();
void cp_async_wait(int left);
void check_access(const void* p, std::size_t n, bool write);
}  // namespace emu
