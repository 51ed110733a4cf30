#include "nccl_types.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace emu::nccl {
namespace {

constexpr std::size_t kBlock = 64;

template <class T>
struct Wide {  // what elements are added in
  using type = T;
};
template <>
struct Wide<__nv_bfloat16> {
  using type = float;
};
template <>
struct Wide<__half> {
  using type = float;
};

template <class T>
typename Wide<T>::type widen(T value) {
  return value;
}
template <>
float widen(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
template <>
float widen(__half value) {
  return __half2float(value);
}

template <class T>
T narrow(typename Wide<T>::type value) {
  return value;
}
template <>
__nv_bfloat16 narrow<__nv_bfloat16>(float value) {
  return __float2bfloat16(value);
}
template <>
__half narrow<__half>(float value) {
  return __float2half(value);
}

template <class W>
W combine(ncclRedOp_t reduction, W a, W b) {
  switch (reduction) {
    case ncclMax:
      return std::max(a, b);
    case ncclMin:
      return std::min(a, b);
    case ncclProd:
      return static_cast<W>(a * b);
    default:
      return static_cast<W>(a + b);
  }
}

template <class T>
T element(const unsigned char* array, std::size_t i) {
  T value;
  std::memcpy(static_cast<void*>(&value), array + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void reduce_as(ncclRedOp_t reduction, const std::vector<const unsigned char*>& sources, std::size_t first,
               std::size_t count, unsigned char* to) {
  using W = typename Wide<T>::type;
  const std::size_t ranks = sources.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t start = (first + i) / kBlock + 1;
    T sum = element<T>(sources[start % ranks], i);
    for (std::size_t hop = 1; hop < ranks; ++hop)
      sum =
          narrow<T>(combine<W>(reduction, widen(sum), widen(element<T>(sources[(start + hop) % ranks], i))));
    if (reduction == ncclAvg) sum = narrow<T>(static_cast<W>(widen(sum) / static_cast<W>(ranks)));
    std::memcpy(to + i * sizeof(T), &sum, sizeof(T));
  }
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 0;
  }
}

bool can_reduce(ncclDataType_t type, ncclRedOp_t reduction) {
  const bool is_known = reduction == ncclSum || reduction == ncclProd || reduction == ncclMax ||
                        reduction == ncclMin || reduction == ncclAvg;
  return size_of(type) > 0 && is_known;
}

void reduce(ncclDataType_t type, ncclRedOp_t reduction, const std::vector<const unsigned char*>& sources,
            std::size_t first, std::size_t count, unsigned char* to) {
  switch (type) {
    case ncclInt8:
      return reduce_as<std::int8_t>(reduction, sources, first, count, to);
    case ncclUint8:
      return reduce_as<std::uint8_t>(reduction, sources, first, count, to);
    case ncclInt32:
      return reduce_as<std::int32_t>(reduction, sources, first, count, to);
    case ncclUint32:
      return reduce_as<std::uint32_t>(reduction, sources, first, count, to);
    case ncclInt64:
      return reduce_as<std::int64_t>(reduction, sources, first, count, to);
    case ncclUint64:
      return reduce_as<std::uint64_t>(reduction, sources, first, count, to);
    case ncclFloat16:
      return reduce_as<__half>(reduction, sources, first, count, to);
    case ncclBfloat16:
      return reduce_as<__nv_bfloat16>(reduction, sources, first, count, to);
    case ncclFloat32:
      return reduce_as<float>(reduction, sources, first, count, to);
    default:
      return reduce_as<double>(reduction, sources, first, count, to);
  }
}

}  // namespace emu::nccl
