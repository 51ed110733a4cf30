// The operations of cartan/device/ops.hpp once more, as plain loops in double: what each one means, and what
// the tests compare every device with. Matrices are row-major vectors of doubles, without strides; gradients
// are the sums over all rows given.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cartan/device/ops.hpp"

namespace cartan::device::reference {

using Values = std::vector<double>;

Values embedding_forward(std::span<const std::int32_t> ids, const Values& table, Index first, Index hidden);
Values embedding_backward(std::span<const std::int32_t> ids, const Values& dout, Index first, Index vocab,
                          Index hidden);

struct RmsNorm {
  Values y, inv_rms;
};
RmsNorm rmsnorm_forward(const Values& x, const Values& weight, double eps);
struct RmsNormGradients {
  Values dx, dweight;
};
RmsNormGradients rmsnorm_backward(const Values& x, const Values& weight, double eps, const Values& dy);

/// x [T, depth], w [cols, depth], bias [cols] or empty.
Values linear_forward(const Values& x, const Values& w, const Values& bias, Index depth);
/// dy [T, N], w [N, K].
Values linear_backward_input(const Values& dy, const Values& w, Index n);
struct LinearGradients {
  Values dw, dbias;
};
/// dy [T, N], x [T, K].
LinearGradients linear_backward_weight(const Values& dy, const Values& x, Index n, Index k);

/// cosines, sines [positions, angles].
Values rope(Values x, Index cols, Index head_dim, std::span<const std::int32_t> positions,
            const Values& cosines, const Values& sines, Index angles, bool inverse);

/// gate_up [T, 2 width].
Values swiglu_forward(const Values& gate_up, Index width);
Values swiglu_backward(const Values& gate_up, const Values& dy, Index width);

struct CrossEntropy {
  Values row_loss, dlogits;
};
CrossEntropy cross_entropy(const Values& logits, std::span<const std::int32_t> targets);

/// stacked [parts * T, D], residual [T, D] or empty.
Values sum_parts(const Values& stacked, Index parts, const Values& residual);

struct AdamWState {
  Values master, exp_avg, exp_avg_sq;
};
void adamw(AdamWState& state, const Values& gradient, const AdamWStep& step);

struct Attention {
  Values out, log_sum_exp;
};
Attention attention_forward(const AttentionShape& shape, const Values& q, const Values& k, const Values& v,
                            std::span<const std::int32_t> document_start);
/// The attention over both sets of keys.
Attention attention_merge(const Attention& a, const Attention& b, Index head_dim);
struct AttentionGradients {
  Values dq, dk, dv;
};
/// whole: the attention over all keys, of which k and v may be a part.
AttentionGradients attention_backward(const AttentionShape& shape, const Values& q, const Values& k,
                                      const Values& v, const Attention& whole,
                                      std::span<const std::int32_t> document_start, const Values& dout);

}  // namespace cartan::device::reference
