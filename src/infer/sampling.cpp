#include "cartan/infer/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "cartan/core/error.hpp"
#include "cartan/core/narrow.hpp"

namespace cartan::infer {

std::int32_t sample(std::span<const float> logits, const SamplingOptions& options, const RandomStream& random,
                    std::uint64_t position) {
  CARTAN_ASSERT(!logits.empty());
  const auto best = std::max_element(logits.begin(), logits.end());
  if (options.temperature <= 0) return narrow<std::int32_t>(best - logits.begin());

  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return logit(a) > logit(b); });
  if (options.top_k > 0 && options.top_k < narrow<Index>(order.size()))
    order.resize(static_cast<std::size_t>(options.top_k));

  std::vector<double> weights;
  weights.reserve(order.size());
  for (const std::int32_t id : order)
    weights.push_back(std::exp(static_cast<double>(logit(id) - *best) / options.temperature));
  double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (options.top_p < 1) {
    double kept = 0;
    std::size_t count = 0;
    while (count < weights.size() && (count == 0 || kept < options.top_p * total)) kept += weights[count++];
    weights.resize(count);
    total = kept;
  }
  double target = random.uniform(position) * total;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    target -= weights[i];
    if (target < 0) return order[i];
  }
  return order[weights.size() - 1];
}

}  // namespace cartan::infer
