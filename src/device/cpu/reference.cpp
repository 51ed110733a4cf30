// Definitions, not algorithms: every line is the formula.
#include "device/cpu/reference.hpp"

#include <algorithm>
#include <cmath>

namespace cartan::device::reference {
namespace {

using Size = std::size_t;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

Size size(Index value) { return static_cast<Size>(value); }

/// Where query i of a sequence and head, and key j, begin in their matrices.
struct AttentionIndex {
  const AttentionShape& s;
  Size query(Index sequence, Index i, Index head) const {
    return statistic(sequence, i, head) * size(s.head_dim);
  }
  Size statistic(Index sequence, Index i, Index head) const {
    return size((sequence * s.q_length + i) * s.heads + head);
  }
  Size key(Index sequence, Index j, Index head) const {
    const Index kv_head = head / (s.heads / s.kv_heads);
    return size(((sequence * s.k_length + j) * s.kv_heads + kv_head) * s.head_dim);
  }
};

/// The scores of one query with the keys that it sees: scores[j] belongs to the key first + j of those here.
struct QueryScores {
  Index first = 0;
  Values scores;
};

QueryScores query_scores(const AttentionShape& s, const Values& q, const Values& k,
                         std::span<const std::int32_t> document_start, Index sequence, Index i, Index head) {
  const AttentionIndex at{s};
  const Index start = document_start[size(sequence * s.q_length + i)], position = s.q_first + i;
  QueryScores result{std::max(start - s.k_first, Index{0}), {}};
  for (Index j = result.first; j < s.k_length && s.k_first + j <= position; ++j) {
    double score = 0;
    for (Size c = 0; c < size(s.head_dim); ++c)
      score += q[at.query(sequence, i, head) + c] * k[at.key(sequence, j, head) + c];
    result.scores.push_back(score * static_cast<double>(s.scale));
  }
  return result;
}

double log_sum_exp(const Values& x) {
  if (x.empty()) return -HUGE_VAL;
  const double largest = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const double score : x) sum += std::exp(score - largest);
  return largest + std::log(sum);
}

}  // namespace

Values embedding_forward(std::span<const std::int32_t> ids, const Values& table, Index first, Index hidden) {
  Values out(ids.size() * size(hidden), 0.0);
  for (Size t = 0; t < ids.size(); ++t) {
    const Index row = ids[t] - first;
    if (row < 0 || size(row * hidden) >= table.size()) continue;
    for (Size c = 0; c < size(hidden); ++c) out[t * size(hidden) + c] = table[size(row * hidden) + c];
  }
  return out;
}

Values embedding_backward(std::span<const std::int32_t> ids, const Values& dout, Index first, Index vocab,
                          Index hidden) {
  Values dtable(size(vocab * hidden), 0.0);
  for (Size t = 0; t < ids.size(); ++t) {
    const Index row = ids[t] - first;
    if (row < 0 || row >= vocab) continue;
    for (Size c = 0; c < size(hidden); ++c) dtable[size(row * hidden) + c] += dout[t * size(hidden) + c];
  }
  return dtable;
}

RmsNorm rmsnorm_forward(const Values& x, const Values& weight, double eps) {
  const Size width = weight.size();
  RmsNorm result{Values(x.size()), {}};
  for (Size row = 0; row < x.size(); row += width) {
    double squares = 0;
    for (Size c = 0; c < width; ++c) squares += x[row + c] * x[row + c];
    const double inv_rms = 1 / std::sqrt(squares / static_cast<double>(width) + eps);
    for (Size c = 0; c < width; ++c) result.y[row + c] = x[row + c] * inv_rms * weight[c];
    result.inv_rms.push_back(inv_rms);
  }
  return result;
}

RmsNormGradients rmsnorm_backward(const Values& x, const Values& weight, double eps, const Values& dy) {
  const Size width = weight.size();
  const Values inv_rms = rmsnorm_forward(x, weight, eps).inv_rms;
  RmsNormGradients result{Values(x.size()), Values(width, 0.0)};
  for (Size row = 0; row < x.size(); row += width) {
    const double inv = inv_rms[row / width];
    double mean = 0;
    for (Size c = 0; c < width; ++c)
      mean += dy[row + c] * weight[c] * x[row + c] / static_cast<double>(width);
    for (Size c = 0; c < width; ++c) {
      result.dx[row + c] = inv * (dy[row + c] * weight[c] - x[row + c] * inv * inv * mean);
      result.dweight[c] += dy[row + c] * x[row + c] * inv;
    }
  }
  return result;
}

Values linear_forward(const Values& x, const Values& w, const Values& bias, Index depth) {
  const Size k = size(depth), n = w.size() / k;
  Values y;
  for (Size row = 0; row < x.size(); row += k) {
    for (Size col = 0; col < n; ++col) {
      double sum = bias.empty() ? 0.0 : bias[col];
      for (Size c = 0; c < k; ++c) sum += x[row + c] * w[col * k + c];
      y.push_back(sum);
    }
  }
  return y;
}

Values linear_backward_input(const Values& dy, const Values& w, Index n) {
  const Size rows = dy.size() / size(n), k = w.size() / size(n);
  Values dx(rows * k, 0.0);
  for (Size t = 0; t < rows; ++t) {
    for (Size col = 0; col < size(n); ++col) {
      for (Size c = 0; c < k; ++c) dx[t * k + c] += dy[t * size(n) + col] * w[col * k + c];
    }
  }
  return dx;
}

LinearGradients linear_backward_weight(const Values& dy, const Values& x, Index n, Index k) {
  LinearGradients result{Values(size(n * k), 0.0), Values(size(n), 0.0)};
  for (Size t = 0; t < dy.size() / size(n); ++t) {
    for (Size col = 0; col < size(n); ++col) {
      const double d = dy[t * size(n) + col];
      result.dbias[col] += d;
      for (Size c = 0; c < size(k); ++c) result.dw[col * size(k) + c] += d * x[t * size(k) + c];
    }
  }
  return result;
}

Values rope(Values x, Index cols, Index head_dim, std::span<const std::int32_t> positions,
            const Values& cosines, const Values& sines, Index angles, bool inverse) {
  for (Size t = 0; t < positions.size(); ++t) {
    for (Index head = 0; head < cols; head += head_dim) {
      for (Index i = 0; i < angles; ++i) {
        double& a = x[t * size(cols) + size(head + i)];
        double& b = x[t * size(cols) + size(head + angles + i)];
        const double c = cosines[size(positions[t] * angles + i)];
        const double s = sines[size(positions[t] * angles + i)] * (inverse ? -1 : 1);
        const double turned = a * c - b * s;
        b = b * c + a * s;
        a = turned;
      }
    }
  }
  return x;
}

Values swiglu_forward(const Values& gate_up, Index width) {
  Values y;
  for (Size row = 0; row < gate_up.size(); row += 2 * size(width)) {
    for (Size c = 0; c < size(width); ++c) {
      const double gate = gate_up[row + c], up = gate_up[row + size(width) + c];
      y.push_back(gate * sigmoid(gate) * up);
    }
  }
  return y;
}

Values swiglu_backward(const Values& gate_up, const Values& dy, Index width) {
  Values result(gate_up.size());
  for (Size t = 0; t < dy.size() / size(width); ++t) {
    for (Size c = 0; c < size(width); ++c) {
      const Size at = 2 * t * size(width) + c;
      const double gate = gate_up[at], up = gate_up[at + size(width)], d = dy[t * size(width) + c];
      const double s = sigmoid(gate);
      result[at] = d * up * (s + gate * s * (1 - s));
      result[at + size(width)] = d * gate * s;
    }
  }
  return result;
}

CrossEntropy cross_entropy(const Values& logits, std::span<const std::int32_t> targets) {
  const Size vocab = targets.empty() ? 0 : logits.size() / targets.size();
  CrossEntropy result{{}, Values(logits.size(), 0.0)};
  for (Size t = 0; t < targets.size(); ++t) {
    if (targets[t] < 0) {
      result.row_loss.push_back(0);
      continue;
    }
    const Size row = t * vocab, target = row + size(targets[t]);
    const double largest = *std::max_element(logits.begin() + static_cast<Index>(row),
                                             logits.begin() + static_cast<Index>(row + vocab));
    double sum = 0;
    for (Size v = row; v < row + vocab; ++v) sum += std::exp(logits[v] - largest);
    for (Size v = row; v < row + vocab; ++v) result.dlogits[v] = std::exp(logits[v] - largest) / sum;
    result.dlogits[target] -= 1;
    result.row_loss.push_back(std::log(sum) + largest - logits[target]);
  }
  return result;
}

Values sum_parts(const Values& stacked, Index parts, const Values& residual) {
  const Size count = stacked.size() / size(parts);
  Values out = residual.empty() ? Values(count, 0.0) : residual;
  for (Size i = 0; i < stacked.size(); ++i) out[i % count] += stacked[i];
  return out;
}

void adamw(AdamWState& state, const Values& gradient, const AdamWStep& step) {
  const double lr = step.lr, beta1 = step.beta1, beta2 = step.beta2;
  for (Size i = 0; i < gradient.size(); ++i) {
    const double g = gradient[i] * step.gradient_scale;
    double& m = state.exp_avg[i];
    double& v = state.exp_avg_sq[i];
    state.master[i] *= 1 - lr * step.weight_decay;
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    state.master[i] -= lr * (m / step.bias_correction1) / (std::sqrt(v / step.bias_correction2) + step.eps);
  }
}

Attention attention_forward(const AttentionShape& s, const Values& q, const Values& k, const Values& v,
                            std::span<const std::int32_t> document_start) {
  const AttentionIndex at{s};
  Attention result{Values(q.size(), 0.0), {}};
  for (Index sequence = 0; sequence < s.sequences; ++sequence) {
    for (Index i = 0; i < s.q_length; ++i) {
      for (Index head = 0; head < s.heads; ++head) {
        const QueryScores seen = query_scores(s, q, k, document_start, sequence, i, head);
        const double lse = log_sum_exp(seen.scores);
        result.log_sum_exp.push_back(lse);
        for (Size j = 0; j < seen.scores.size(); ++j) {
          const Size key = at.key(sequence, seen.first + static_cast<Index>(j), head);
          for (Size c = 0; c < size(s.head_dim); ++c) {
            result.out[at.query(sequence, i, head) + c] += std::exp(seen.scores[j] - lse) * v[key + c];
          }
        }
      }
    }
  }
  return result;
}

Attention attention_merge(const Attention& a, const Attention& b, Index head_dim) {
  Attention sum{Values(a.out.size(), 0.0), {}};
  for (Size row = 0; row < a.log_sum_exp.size(); ++row) {
    const double lse = std::log(std::exp(a.log_sum_exp[row]) + std::exp(b.log_sum_exp[row]));
    sum.log_sum_exp.push_back(lse);
    if (lse == -HUGE_VAL) continue;
    for (Size i = row * size(head_dim); i < (row + 1) * size(head_dim); ++i) {
      sum.out[i] =
          std::exp(a.log_sum_exp[row] - lse) * a.out[i] + std::exp(b.log_sum_exp[row] - lse) * b.out[i];
    }
  }
  return sum;
}

AttentionGradients attention_backward(const AttentionShape& s, const Values& q, const Values& k,
                                      const Values& v, const Attention& whole,
                                      std::span<const std::int32_t> document_start, const Values& dout) {
  const AttentionIndex at{s};
  const Size channels = size(s.head_dim);
  AttentionGradients g{Values(q.size(), 0.0), Values(k.size(), 0.0), Values(v.size(), 0.0)};
  for (Index sequence = 0; sequence < s.sequences; ++sequence) {
    for (Index i = 0; i < s.q_length; ++i) {
      for (Index head = 0; head < s.heads; ++head) {
        const QueryScores seen = query_scores(s, q, k, document_start, sequence, i, head);
        const Size query = at.query(sequence, i, head);
        double mean = 0;  // of what the weights' gradients are, by the weights
        for (Size c = 0; c < channels; ++c) mean += dout[query + c] * whole.out[query + c];
        for (Size j = 0; j < seen.scores.size(); ++j) {
          const Size key = at.key(sequence, seen.first + static_cast<Index>(j), head);
          const double weight = std::exp(seen.scores[j] - whole.log_sum_exp[at.statistic(sequence, i, head)]);
          double dweight = 0;
          for (Size c = 0; c < channels; ++c) {
            dweight += dout[query + c] * v[key + c];
            g.dv[key + c] += weight * dout[query + c];
          }
          const double dscore = weight * (dweight - mean) * static_cast<double>(s.scale);
          for (Size c = 0; c < channels; ++c) {
            g.dq[query + c] += dscore * k[key + c];
            g.dk[key + c] += dscore * q[query + c];
          }
        }
      }
    }
  }
  return g;
}

}  // namespace cartan::device::reference
