// The loops of the CPU operations, on one thread: rows of vectors in registers, for the best instruction set
// that the CPU has (Google Highway picks at run time). Pointers with a DType are fp32, bf16 or fp16;
// arithmetic is fp32, a 16-bit result is rounded once, to nearest even. A sum runs over the lanes of a few
// vectors and then over the lanes left to right: its order depends on the length and the instruction set
// only.
#pragma once

#include <cstdint>

#include "cartan/core/types.hpp"
#include "cartan/device/ops.hpp"

namespace cartan::device::cpu {

// --- moving and adding (kernels_move.cpp) ---

/// out[i] = in[i] between dtypes.
void convert(const void* in, DType in_type, void* out, DType out_type, Index count);
/// out = left + right; out may be either.
void add_floats(const float* left, const float* right, float* out, Index count);
/// sum[i] += row[i].
void add_row(float* sum, const void* row, DType dtype, Index count);
/// sum = sum * keep + row * take.
void blend_row(float* sum, float keep, const void* row, float take, DType dtype, Index count);
/// out[i] = residual[i] + (first[i] + first[step + i] + ...) over the parts; residual may be null, or out.
void sum_rows(const void* first, Index step, Index parts, DType part_type, const void* residual, void* out,
              DType out_type, Index count);
bool finite(const void* x, DType dtype, Index count);
/// Sum of squares in fp64.
double square_sum(const float* x, Index count);
/// y[r, :] = y[r, :] * accumulate + tile[r, :] + bias, at most 1024 columns. bias (in bias_type) may be null.
void store_tile(const float* tile, Index rows, Index cols, const void* bias, DType bias_type, bool accumulate,
                void* y, DType y_type, Index y_stride);

// --- transposing (pack.cpp); from 8-bit codes too ---

/// out[r * out_stride + c] = in[r * in_stride + c] as fp32.
void pack_rows(const void* in, DType dtype, Index in_stride, Index rows, Index cols, float* out,
               Index out_stride);
/// out[c * out_stride + r] = in[r * in_stride + c] as fp32.
void pack_transposed(const void* in, DType dtype, Index in_stride, Index rows, Index cols, float* out,
                     Index out_stride);

// --- normalization (kernels_norm.cpp) ---

/// One group of a row: y = x * inv_rms * weight; returns inv_rms.
float rmsnorm_row(const void* x, const void* weight, float eps, void* y, DType dtype, Index cols);
/// dx = dx * accumulate + inv_rms * (dy * weight - x * inv_rms^2 * mean(dy * weight * x)).
void rmsnorm_row_backward(const void* x, const void* weight, float inv_rms, const void* dy, void* dx,
                          bool accumulate, DType dtype, Index cols);
/// sum[i] += dy[i] * x[i] * inv_rms.
void add_norm_weight_row(float* sum, const void* x, const void* dy, float inv_rms, DType dtype, Index cols);

// --- activations, positions, loss (kernels_activation.cpp, kernels_loss.cpp) ---

/// One head: pairs (i, i + half) turn by the angle with the given cosines and sines.
void rope_head(void* x, DType dtype, const float* cosines, const float* sines, Index half, bool inverse);
void swiglu_row(const void* gate, const void* up, void* y, DType dtype, Index cols);
/// y may be null.
void swiglu_row_backward(const void* gate, const void* up, const void* dy, void* dgate, void* dup, void* y,
                         DType dtype, Index cols);
/// Returns the loss; dlogits = scale * (softmax - onehot) may be null and may start where logits start.
float cross_entropy_row(const float* logits, Index cols, Index target, void* dlogits, DType dtype,
                        float scale);

/// Of a row, or of a part of it: its maximum, and the sum of exp(x - maximum). Of nothing: -infinity and 0.
struct SoftmaxStats {
  float maximum = 0, sum = 0;
};
SoftmaxStats softmax_stats(const float* logits, Index cols);
/// dlogits = scale * (softmax - onehot) by the statistics of the whole row; a target outside of the columns
/// has no element here. dlogits may start where logits start.
void cross_entropy_gradient(const float* logits, Index cols, Index target, SoftmaxStats stats, void* dlogits,
                            DType dtype, float scale);

// --- optimizer (kernels_adamw.cpp) ---

/// compute may be null.
void adamw_block(float* master, const float* gradient, float* exp_avg, float* exp_avg_sq, void* compute,
                 DType compute_type, Index count, const AdamWStep& step);

}  // namespace cartan::device::cpu
