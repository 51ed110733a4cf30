// Definitions, not algorithms: every line is the formula.
#include "device/cpu/reference.hpp"

#include <algorithm>
#include <cmath>

namespace cartan::device::reference {
namespace {

using Size = std::size_t;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

Size size(Index value) { return static_cast<Size>(value); }

/// The softmax weights of one query: weights[j] belongs to the key first + j.
struct QueryWeights {
  Size first = 0;
  Values weights;
  double log_sum_exp = 0;
};

/// Where query i of a sequence and head, and key j, begin in their matrices.
struct AttentionIndex {
  const AttentionShape& s;
  Size query(Index sequence, Index i, Index head) const {
    return size(((sequence * s.q_length + i) * s.heads + head) * s.head_dim);
  }
  Size key(Index sequence, Size j, Index head) const {
    const Index kv_head = head / (s.heads / s.kv_heads);
    return size(((sequence * s.k_length + static_cast<Index>(j)) * s.kv_heads + kv_head) * s.head_dim);
  }
};

QueryWeights query_weights(const AttentionShape& s, const Values& q, const Values& k,
                           std::span<const std::int32_t> document_start, Index sequence, Index i,
                           Index head) {
  const AttentionIndex at{s};
  QueryWeights result;
  result.first = static_cast<Size>(document_start[size(sequence * s.q_length + i)]);
  const Size last = size(s.k_length - s.q_length + i);
  double largest = -HUGE_VAL;
  for (Size j = result.first; j <= last; ++j) {
    double score = 0;
    for (Size c = 0; c < size(s.head_dim); ++c)
      score += q[at.query(sequence, i, head) + c] * k[at.key(sequence, j, head) + c];
    result.weights.push_back(score * static_cast<double>(s.scale));
    largest = std::max(largest, result.weights.back());
  }
  double sum = 0;
  for (double& w : result.weights) sum += w = std::exp(w - largest);
  for (double& w : result.weights) w /= sum;
  result.log_sum_exp = largest + std::log(sum);
  return result;
}

}  // namespace

Values embedding_forward(std::span<const std::int32_t> ids, const Values& table, Index hidden) {
  Values out;
  for (const std::int32_t id : ids) {
    const auto row = table.begin() + id * hidden;
    out.insert(out.end(), row, row + hidden);
  }
  return out;
}

Values embedding_backward(std::span<const std::int32_t> ids, const Values& dout, Index vocab, Index hidden) {
  Values dtable(size(vocab * hidden), 0.0);
  for (Size t = 0; t < ids.size(); ++t) {
    for (Size c = 0; c < size(hidden); ++c) dtable[size(ids[t] * hidden) + c] += dout[t * size(hidden) + c];
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
        const QueryWeights w = query_weights(s, q, k, document_start, sequence, i, head);
        result.log_sum_exp.push_back(w.log_sum_exp);
        for (Size j = 0; j < w.weights.size(); ++j) {
          for (Size c = 0; c < size(s.head_dim); ++c) {
            result.out[at.query(sequence, i, head) + c] +=
                w.weights[j] * v[at.key(sequence, w.first + j, head) + c];
          }
        }
      }
    }
  }
  return result;
}

AttentionGradients attention_backward(const AttentionShape& s, const Values& q, const Values& k,
                                      const Values& v, std::span<const std::int32_t> document_start,
                                      const Values& dout) {
  const AttentionIndex at{s};
  const Size channels = size(s.head_dim);
  AttentionGradients g{Values(q.size(), 0.0), Values(k.size(), 0.0), Values(v.size(), 0.0)};
  for (Index sequence = 0; sequence < s.sequences; ++sequence) {
    for (Index i = 0; i < s.q_length; ++i) {
      for (Index head = 0; head < s.heads; ++head) {
        const QueryWeights w = query_weights(s, q, k, document_start, sequence, i, head);
        const Size query = at.query(sequence, i, head);
        Values dweight(w.weights.size(), 0.0);
        double mean = 0;  // of dweight, by the weights
        for (Size j = 0; j < w.weights.size(); ++j) {
          const Size key = at.key(sequence, w.first + j, head);
          for (Size c = 0; c < channels; ++c) {
            dweight[j] += dout[query + c] * v[key + c];
            g.dv[key + c] += w.weights[j] * dout[query + c];
          }
          mean += w.weights[j] * dweight[j];
        }
        for (Size j = 0; j < w.weights.size(); ++j) {
          const Size key = at.key(sequence, w.first + j, head);
          const double dscore = w.weights[j] * (dweight[j] - mean) * static_cast<double>(s.scale);
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
