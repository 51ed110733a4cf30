#include "device/cpu/decision.hpp"

#include <algorithm>
#include <cmath>

#include "cartan/core/exact_sum.hpp"

namespace cartan::device::cpu {

UpdateDecision decide_update(std::span<const std::int64_t> words, const UpdateRule& rule,
                             const float* loss_scale) {
  const ExactSum squares(words.first<ExactSum::kWordCount>());
  const double scale = loss_scale == nullptr ? rule.scale : rule.scale / static_cast<double>(*loss_scale);
  const double norm = scale * std::sqrt(squares.value());
  const double clipped = rule.clip > 0 ? std::min(1.0, rule.clip / (norm + 1e-6)) : 1.0;
  return {norm, static_cast<float>(scale * clipped), std::isfinite(norm) ? 1 : 0};
}

}  // namespace cartan::device::cpu
