// Shares rows and blocks among the threads and calls the kernels.
#include "device/cpu/rows.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

#include "cartan/core/error.hpp"
#include "device/cpu/kernels.hpp"
#include "device/cpu/partition.hpp"

namespace cartan::device::cpu {
namespace {

template <class M>
auto* at(const M& m, Index row, Index col) {
  return advance(m.data, m.dtype, row * m.stride + col);
}

}  // namespace

void rmsnorm_forward(const Context& context, ConstMatrix x, ConstVector weight, float eps, Matrix y,
                     Vector inv_rms) {
  const Index width = weight.size, groups = x.cols / width;
  for_row_blocks(context, x.rows, x.cols, [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) {
      for (Index g = 0; g < groups; ++g) {
        const float inv =
            rmsnorm_row(at(x, t, g * width), weight.data, eps, at(y, t, g * width), x.dtype, width);
        if (inv_rms.data != nullptr) static_cast<float*>(inv_rms.data)[t * groups + g] = inv;
      }
    }
  });
}

void rmsnorm_backward(const Context& context, ConstMatrix x, ConstVector weight, ConstVector inv_rms,
                      ConstMatrix dy, Matrix dx, bool accumulate, SequenceShape shape,
                      const GradientView& dweight) {
  const Index width = weight.size, groups = x.cols / width;
  const auto* inv = static_cast<const float*>(inv_rms.data);
  // The weight's gradient first: dx may overwrite dy.
  if (dweight) {
    fold_columns(context, width, shape, dweight, [&](Index row, Index begin, Index count, float* sum) {
      for (Index g = 0; g < groups; ++g) {
        add_norm_weight_row(sum, at(x, row, g * width + begin), at(dy, row, g * width + begin),
                            inv[row * groups + g], x.dtype, count);
      }
    });
  }
  if (dx.cols == 0) return;
  for_row_blocks(context, x.rows, x.cols, [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) {
      for (Index g = 0; g < groups; ++g) {
        rmsnorm_row_backward(at(x, t, g * width), weight.data, inv[t * groups + g], at(dy, t, g * width),
                             at(dx, t, g * width), accumulate, x.dtype, width);
      }
    }
  });
}

void rope(const Context& context, Matrix x, Index head_dim, std::span<const std::int32_t> positions,
          ConstMatrix cosines, ConstMatrix sines, bool inverse) {
  for_row_blocks(context, x.rows, x.cols, [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) {
      const std::int32_t position = positions[static_cast<std::size_t>(t)];
      if (position < 0 || position >= cosines.rows) {
        throw InternalError("rope: position {} of row {}, the tables have {}", position, t, cosines.rows);
      }
      const auto* c = static_cast<const float*>(at(cosines, position, 0));
      const auto* s = static_cast<const float*>(at(sines, position, 0));
      for (Index col = 0; col < x.cols; col += head_dim)
        rope_head(at(x, t, col), x.dtype, c, s, cosines.cols, inverse);
    }
  });
}

void attention_merge(const Context& context, Matrix out_sum, Vector lse_sum, ConstMatrix out,
                     ConstVector log_sum_exp, Index head_dim) {
  const Index heads = out.cols / head_dim;
  auto* const sums = static_cast<float*>(lse_sum.data);
  const auto* const parts = static_cast<const float*>(log_sum_exp.data);
  for_row_blocks(context, out.rows, out.cols, [&](Index begin, Index end) {
    for (Index row = begin * heads; row < end * heads; ++row) {
      const Index t = row / heads, col = row % heads * head_dim;
      if (parts[row] == -HUGE_VALF) continue;
      // exp(a) + exp(b) = exp(larger) (1 + exp(smaller - larger)). Where the sum has nothing yet, the weights
      // are exactly 0 and 1.
      const float ratio = std::exp(-std::abs(sums[row] - parts[row]));
      const float of_larger = 1.0f / (1.0f + ratio), of_smaller = ratio / (1.0f + ratio);
      const bool sum_is_larger = sums[row] > parts[row];
      blend_row(static_cast<float*>(at(out_sum, t, col)), sum_is_larger ? of_larger : of_smaller,
                at(out, t, col), sum_is_larger ? of_smaller : of_larger, out.dtype, head_dim);
      sums[row] = std::max(sums[row], parts[row]) + std::log1p(ratio);
    }
  });
}

void swiglu_forward(const Context& context, ConstMatrix gate_up, Matrix y) {
  for_row_blocks(context, y.rows, y.cols, [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) {
      swiglu_row(at(gate_up, t, 0), at(gate_up, t, y.cols), at(y, t, 0), y.dtype, y.cols);
    }
  });
}

void swiglu_backward(const Context& context, ConstMatrix gate_up, ConstMatrix dy, Matrix dgate_up, Matrix y) {
  for_row_blocks(context, dy.rows, dy.cols, [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) {
      swiglu_row_backward(at(gate_up, t, 0), at(gate_up, t, dy.cols), at(dy, t, 0), at(dgate_up, t, 0),
                          at(dgate_up, t, dy.cols), y.data != nullptr ? at(y, t, 0) : nullptr, dy.dtype,
                          dy.cols);
    }
  });
}

void cross_entropy(const Context& context, ConstMatrix logits, std::span<const std::int32_t> targets,
                   Vector row_loss, Matrix dlogits, const float* scale) {
  auto* losses = static_cast<float*>(row_loss.data);
  const float factor = scale == nullptr ? 1.0f : *scale;
  for_row_blocks(context, logits.rows, logits.cols, [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) {
      const std::int32_t target = targets[static_cast<std::size_t>(t)];
      void* const gradient = dlogits.data != nullptr ? at(dlogits, t, 0) : nullptr;
      if (target >= logits.cols) {
        throw InternalError("cross_entropy: target {} of row {}, the vocabulary has {}", target, t,
                            logits.cols);
      }
      if (target >= 0) {
        losses[t] = cross_entropy_row(static_cast<const float*>(at(logits, t, 0)), logits.cols, target,
                                      gradient, dlogits.dtype, factor);
        continue;
      }
      losses[t] = 0.0f;
      if (gradient != nullptr) {
        std::memset(gradient, 0, static_cast<std::size_t>(logits.cols) * size_of(dlogits.dtype));
      }
    }
  });
}

void cross_entropy_stats(const Context& context, ConstMatrix logits, std::span<const std::int32_t> targets,
                         Index first, Vector row_max, Vector row_sum, Vector target_logit) {
  for_row_blocks(context, logits.rows, logits.cols, [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) {
      const auto* const row = static_cast<const float*>(at(logits, t, 0));
      const Index target = targets[static_cast<std::size_t>(t)] - first;
      const bool here = target >= 0 && target < logits.cols;
      const SoftmaxStats stats = softmax_stats(row, logits.cols);
      static_cast<float*>(row_max.data)[t] = stats.maximum;
      static_cast<float*>(row_sum.data)[t] = stats.sum;
      static_cast<float*>(target_logit.data)[t] = here ? row[target] : -HUGE_VALF;
    }
  });
}

void cross_entropy_combine(const Context& context, ConstMatrix stacked, Index parts, Vector row_max,
                           Vector row_sum, Vector target_logit) {
  const auto value = [&](Index part, Index which, Index row) {
    return static_cast<const float*>(at(stacked, 3 * part + which, 0))[row];
  };
  for_row_blocks(context, stacked.cols, parts, [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) {
      float maximum = -HUGE_VALF, target = -HUGE_VALF, sum = 0;
      for (Index part = 0; part < parts; ++part) {
        maximum = std::max(maximum, value(part, 0, t));
        target = std::max(target, value(part, 2, t));
      }
      for (Index part = 0; part < parts; ++part)
        if (value(part, 1, t) != 0) sum += value(part, 1, t) * std::exp(value(part, 0, t) - maximum);
      static_cast<float*>(row_max.data)[t] = maximum;
      static_cast<float*>(row_sum.data)[t] = sum;
      static_cast<float*>(target_logit.data)[t] = target;
    }
  });
}

void cross_entropy_finish(const Context& context, ConstMatrix logits, std::span<const std::int32_t> targets,
                          Index first, ConstVector row_max, ConstVector row_sum, ConstVector target_logit,
                          Vector row_loss, Matrix dlogits, const float* scale) {
  const float factor = scale == nullptr ? 1.0f : *scale;
  const auto* const maxima = static_cast<const float*>(row_max.data);
  const auto* const sums = static_cast<const float*>(row_sum.data);
  const auto* const target_logits = static_cast<const float*>(target_logit.data);
  for_row_blocks(context, logits.rows, logits.cols, [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) {
      const std::int32_t target = targets[static_cast<std::size_t>(t)];
      const SoftmaxStats stats{maxima[t], sums[t]};
      if (row_loss.data != nullptr) {
        static_cast<float*>(row_loss.data)[t] =
            target < 0 ? 0.0f : std::log(stats.sum) + (stats.maximum - target_logits[t]);
      }
      if (dlogits.data == nullptr) continue;
      void* const gradient = at(dlogits, t, 0);
      if (target < 0) {
        std::memset(gradient, 0, static_cast<std::size_t>(logits.cols) * size_of(dlogits.dtype));
      } else {
        cross_entropy_gradient(static_cast<const float*>(at(logits, t, 0)), logits.cols, target - first,
                               stats, gradient, dlogits.dtype, factor);
      }
    }
  });
}

void adamw(const Context& context, Vector master, ConstVector gradient, Vector exp_avg, Vector exp_avg_sq,
           Vector compute, const AdamWStep& given, const UpdateDecision* decision) {
  AdamWStep step = given;
  if (decision != nullptr) {
    if (decision->is_applied == 0) {
      if (compute.data != nullptr)
        copy(context, as_matrix(master.data, DType::f32, 1, master.size),
             as_matrix(compute.data, compute.dtype, 1, compute.size));
      return;
    }
    step.gradient_scale = decision->gradient_scale;
  }
  for_blocks(context, master.size, [&](Index begin, Index count) {
    adamw_block(static_cast<float*>(master.data) + begin, static_cast<const float*>(gradient.data) + begin,
                static_cast<float*>(exp_avg.data) + begin, static_cast<float*>(exp_avg_sq.data) + begin,
                compute.data != nullptr ? advance(compute.data, compute.dtype, begin) : nullptr,
                compute.dtype, count, step);
  });
}

void square_sums(const Context& context, ConstVector x, std::span<double> sums) {
  const auto* data = static_cast<const float*>(x.data);
  for_row_blocks(context, static_cast<Index>(sums.size()), kSumBlock, [&](Index begin, Index end) {
    for (Index b = begin; b < end; ++b) {
      const Index first = b * kSumBlock;
      sums[static_cast<std::size_t>(b)] = square_sum(data + first, std::min(kSumBlock, x.size - first));
    }
  });
}

void tree_sum(const Context& context, std::span<const float* const> values, std::span<const int> merges,
              float* out, Index count) {
  // A block's partial sums stay in the cache; the last addition writes to out, after every value was read.
  constexpr Index kBlock = 4096;
  constexpr int kMaxDepth = 96;
  struct Value {
    const float* data;
    float* buffer;
  };
  context.pool.run(ceil_div(count, kBlock), [&](Index task, int thread) {
    const Index begin = task * kBlock, length = std::min(kBlock, count - begin);
    float* const buffers = context.scratch<float>(thread);
    std::array<Value, kMaxDepth> stack{};
    Index depth = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      Value value{values[i] + begin, nullptr};
      for (int m = 0; m < merges[i]; ++m) {
        const Value top = stack[static_cast<std::size_t>(--depth)];
        // The buffer that belongs to the place on the stack; nobody else's value lies there.
        float* const place = buffers + depth * kBlock;
        const bool last = i + 1 == values.size() && m + 1 == merges[i];
        float* const sum = last ? out + begin : place;
        add_floats(top.data, value.data, sum, length);
        value = {sum, sum};
      }
      CARTAN_ASSERT(depth < kMaxDepth);
      stack[static_cast<std::size_t>(depth++)] = value;
    }
    const float* const result = stack[0].data;
    if (result != out + begin) std::copy(result, result + length, out + begin);
  });
}

void sum_parts(const Context& context, ConstMatrix stacked, Index parts, ConstMatrix residual, Matrix out) {
  for_row_blocks(context, out.rows, parts * out.cols, [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) {
      sum_rows(at(stacked, t, 0), out.rows * stacked.stride, parts, stacked.dtype,
               residual.data != nullptr ? at(residual, t, 0) : nullptr, at(out, t, 0), out.dtype, out.cols);
    }
  });
}

void add(const Context& context, Vector y, ConstVector x) {
  auto* sum = static_cast<float*>(y.data);
  const auto* term = static_cast<const float*>(x.data);
  for_blocks(context, y.size,
             [&](Index begin, Index count) { add_floats(sum + begin, term + begin, sum + begin, count); });
}

void subtract(const Context& context, Vector y, ConstVector x) {
  for_blocks(context, y.size, [&](Index begin, Index count) {
    blend_row(static_cast<float*>(y.data) + begin, 1.0f, static_cast<const float*>(x.data) + begin, -1.0f,
              DType::f32, count);
  });
}

void fill_zero(const Context& context, Vector y) {
  for_blocks(context, y.size, [&](Index begin, Index count) {
    std::memset(advance(y.data, y.dtype, begin), 0, static_cast<std::size_t>(count) * size_of(y.dtype));
  });
}

void copy(const Context& context, ConstMatrix x, Matrix y) {
  for_row_blocks(context, x.rows, x.cols, [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) convert(at(x, t, 0), x.dtype, at(y, t, 0), y.dtype, x.cols);
  });
}

bool all_finite(const Context& context, ConstMatrix x) {
  std::atomic<bool> all{true};
  for_row_blocks(context, x.rows, x.cols, [&](Index begin, Index end) {
    for (Index t = begin; t < end && all; ++t) {
      if (!finite(at(x, t, 0), x.dtype, x.cols)) all = false;
    }
  });
  return all;
}

}  // namespace cartan::device::cpu
