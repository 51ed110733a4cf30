// Tensor-core products of a warp. Fragment layouts are those of the PTX manual, with g = lane / 4 and t =
// lane % 4; a register holds two neighbouring elements, the first in its lower half.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

namespace cartan::kernels::warp {

/// d += a b with a [16, 16], b [16, 8], d [16, 8] in fp32.
///   a[0]: row g, columns 2t, 2t+1; a[1]: row g+8; a[2]: row g, columns 2t+8, 2t+9; a[3]: row g+8 of those
///   b[0]: rows 2t, 2t+1 of column g; b[1]: rows 2t+8, 2t+9
///   d[0], d[1]: row g, columns 2t, 2t+1; d[2], d[3]: row g+8
template <class T>
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

/// Four 8x8 matrices of 16-bit elements from shared memory: lane l gives the address of row l % 8 of matrix l
/// / 8 (16 bytes, aligned); register i receives elements 2t, 2t+1 of row g of matrix i.
__device__ __forceinline__ void ldmatrix(unsigned (&r)[4], const void* shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(shared_row)))
               : "memory");
}
/// The same, each matrix transposed: register i receives elements of rows 2t, 2t+1 of column g.
__device__ __forceinline__ void ldmatrix_transposed(unsigned (&r)[4], const void* shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(shared_row)))
               : "memory");
}

}  // namespace cartan::kernels::warp
