#include "elements.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstring>

namespace emu {

void read_floats(cudaDataType type, const void* from, std::size_t count, float* to) {
  if (type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2) {
    const auto* const codes = static_cast<const __nv_fp8_storage_t*>(from);
    const auto format = type == CUDA_R_8F_E4M3 ? __NV_E4M3 : __NV_E5M2;
    for (std::size_t i = 0; i < count; ++i)
      to[i] = __half2float(__half(__nv_cvt_fp8_to_halfraw(codes[i], format)));
  } else if (type == CUDA_R_32F) {
    std::memcpy(to, from, count * sizeof(float));
  } else if (type == CUDA_R_16BF) {
    const auto* const values = static_cast<const __nv_bfloat16*>(from);
    for (std::size_t i = 0; i < count; ++i) to[i] = __bfloat162float(values[i]);
  } else {
    const auto* const values = static_cast<const __half*>(from);
    for (std::size_t i = 0; i < count; ++i) to[i] = __half2float(values[i]);
  }
}

void write_floats(cudaDataType type, const float* from, std::size_t count, void* to) {
  if (type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2) {
    auto* const codes = static_cast<__nv_fp8_storage_t*>(to);
    const auto format = type == CUDA_R_8F_E4M3 ? __NV_E4M3 : __NV_E5M2;
    for (std::size_t i = 0; i < count; ++i) codes[i] = __nv_cvt_float_to_fp8(from[i], __NV_SATFINITE, format);
  } else if (type == CUDA_R_32F) {
    std::memcpy(to, from, count * sizeof(float));
  } else if (type == CUDA_R_16BF) {
    auto* const values = static_cast<__nv_bfloat16*>(to);
    for (std::size_t i = 0; i < count; ++i) values[i] = __float2bfloat16(from[i]);
  } else {
    auto* const values = static_cast<__half*>(to);
    for (std::size_t i = 0; i < count; ++i) values[i] = __float2half(from[i]);
  }
}

}  // namespace emu
