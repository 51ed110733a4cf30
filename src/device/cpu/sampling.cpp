// A row of logits on one thread: some passes over it, and no memory. What top_k and top_p keep are the
// largest logits, so the later rule only shortens what the earlier one kept.
#include "device/cpu/sampling.hpp"

#include <algorithm>
#include <bit>

#include "cartan/core/error.hpp"
#include "device/cpu/partition.hpp"
#include "device/cpu/selection.hpp"

namespace cartan::device::cpu {
namespace {

struct Row {
  const float* logits;
  Index size;

  std::uint32_t order(Index id) const { return order_of(std::bit_cast<std::uint32_t>(logits[id])); }

  /// f(id, order) for the kept ids in ascending order, while it returns true.
  template <class F>
  void for_kept(Largest kept, const F& f) const {
    for (Index id = 0; id < size; ++id) {
      const std::uint32_t bits = order(id);
      if (bits < kept.threshold || (bits == kept.threshold && kept.equal-- <= 0)) continue;
      if (!f(id, bits)) return;
    }
  }
};

Index choose(const Row& row, double uniform, const SamplingRule& rule) {
  Index best = 0;
  for (Index id = 1; id < row.size; ++id)
    if (row.order(id) > row.order(best)) best = id;
  if (!is_order_of_finite(row.order(best))) return -1;
  if (rule.temperature == 0) return best;

  const TokenWeight weight_of(row.logits[best], rule.temperature);
  const auto weight = [&](std::uint32_t order) {
    return weight_of(std::bit_cast<float>(bits_in_place(order)));
  };
  const auto order = [&](Index id) { return row.order(id); };
  const auto weight_of_all = [&](const Largest& kept) {
    std::uint64_t sum = 0;
    row.for_kept(kept, [&](Index, std::uint32_t bits) {
      sum += weight(bits);
      return true;
    });
    return sum;
  };

  Largest kept;
  if (rule.top_k > 0 && rule.top_k < row.size)
    kept = find_largest(row.size, static_cast<std::uint64_t>(rule.top_k), order,
                        [](std::uint32_t) { return std::uint64_t{1}; });
  std::uint64_t total = weight_of_all(kept);
  if (rule.top_p < 1) {
    const std::uint64_t wanted = part_of(total, rule.top_p, true);
    kept = find_largest(row.size, std::max<std::uint64_t>(1, wanted), order, weight);
    total = weight_of_all(kept);
  }
  std::uint64_t left = part_of(total, uniform, false);
  Index chosen = -1;
  row.for_kept(kept, [&](Index id, std::uint32_t bits) {
    const std::uint64_t weight_of_id = weight(bits);
    if (left < weight_of_id) chosen = id;
    left -= weight_of_id;
    return chosen < 0;
  });
  CARTAN_ASSERT(chosen >= 0);
  return chosen;
}

}  // namespace

void penalise_repeats(Vector logits, std::span<const std::int32_t> ids, float penalty) {
  auto* const values = static_cast<float*>(logits.data);
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= logits.size)
      throw InternalError("penalise_repeats: id {} of {} logits", id, logits.size);
    values[id] = penalised(values[id], penalty);
  }
}

void sample(const Context& context, ConstMatrix logits, std::span<const double> uniforms,
            const SamplingRule& rule, std::span<std::int32_t> tokens) {
  const auto* const data = static_cast<const float*>(logits.data);
  for_row_blocks(context, logits.rows, logits.cols, [&](Index begin, Index end) {
    for (Index row = begin; row < end; ++row) {
      const auto t = static_cast<std::size_t>(row);
      tokens[t] = narrow<std::int32_t>(choose({data + row * logits.stride, logits.cols}, uniforms[t], rule));
    }
  });
}

}  // namespace cartan::device::cpu
