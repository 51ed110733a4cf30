// Linear layers as matrix products; the contracts are in cartan/device/ops.hpp.
#pragma once

#include "cartan/device/view.hpp"
#include "device/cuda/gemm.hpp"

namespace cartan::device::cuda {

/// What products on one stream may use.
struct LinearRoom {
  kernels::Scratch gemm, leaves, kernels;
};

/// Of a weight's gradient: rows are cut so that a piece has at most so many floats, whatever the micro-batch,
/// and the new values of its fold lie in LinearRoom::leaves, at most so many at a time.
inline constexpr Index kLeafPiece = Index{4} << 20;
inline constexpr int kLeafPieces = 4;
inline constexpr std::size_t kLeafBytes = static_cast<std::size_t>(kLeafPiece) * sizeof(float) * kLeafPieces;

void linear_forward(Gemm& gemm, ConstMatrix x, ConstMatrix w, ConstVector bias, Matrix y, bool accumulate,
                    SequenceShape shape, const LinearRoom& room, cudaStream_t stream);
void linear_backward_input(Gemm& gemm, ConstMatrix dy, ConstMatrix w, Matrix dx, bool accumulate,
                           SequenceShape shape, const LinearRoom& room, cudaStream_t stream);
void linear_backward_weight(Gemm& gemm, ConstMatrix dy, ConstMatrix x, SequenceShape shape,
                            const GradientView& dw, const GradientView& dbias, const LinearRoom& room,
                            cudaStream_t stream);

}  // namespace cartan::device::cuda
