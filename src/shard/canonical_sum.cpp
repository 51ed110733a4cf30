// The sum in canonical order, and what all exchanges share.
#include "cartan/core/narrow.hpp"
#include "shard/gradient_sum.hpp"

namespace cartan::shard {
namespace {

class CanonicalSum : public GradientSum {
 public:
  explicit CanonicalSum(const ExchangePlace& place) : place_(place) {}

  device::Event all_reduce(Index begin, Index count) override {
    place_.wait_for_gradients();
    return place_.plane.all_reduce(sums_of(begin, count), place_.stream);
  }

  device::Event reduce_scatter(const GradientPart& part, LeafRange leaves) override {
    const FlatLayout& layout = place_.state.layout();
    comm::PartialSums sums = sums_of(part.begin, part.elements);
    sums.shard = layout.place().width;
    std::vector<float*> stack{sums.slots[0] + part.alone.begin};
    if (layout.gradient_life() == GradientLife::transient) {
      sums.leaves = leaves;
      stack = place_.state.owned_stack(part);
    }
    place_.wait_for_gradients();
    return place_.plane.reduce_scatter(sums, std::move(stack), place_.stream);
  }

 private:
  comm::PartialSums sums_of(Index begin, Index count) const {
    comm::PartialSums sums{&place_.tree, {}, count, {}, place_.parts};
    for (float* slot : place_.state.slots()) sums.slots.push_back(slot + begin);
    return sums;
  }

  ExchangePlace place_;
};

}  // namespace

device::Vector ExchangePlace::whole(Index begin, Index count) const {
  return {state.slots()[0] + begin, DType::f32, count};
}

void ExchangePlace::wait_for_gradients() const { stream.wait(state.device().compute_stream().record()); }

void ExchangePlace::fold_own(Index begin, Index count, LeafRange leaves) const {
  wait_for_gradients();
  const LeafRange own = leaf_range(leaves.end - leaves.begin, plane.rank() / parts, plane.size() / parts);
  const std::size_t nodes = tree.stack_of_range(leaves.begin + own.begin, leaves.begin + own.end).size();
  device::Ops& ops = state.device().ops();
  if (nodes == 0) ops.fill_zero(whole(begin, count), stream);
  for (std::size_t slot = nodes; slot-- > 1;)
    ops.add({state.slots()[slot - 1] + begin, DType::f32, count},
            device::Vector{state.slots()[slot] + begin, DType::f32, count}, stream);
}

std::unique_ptr<GradientSum> make_canonical_sum(const ExchangePlace& place) {
  return std::make_unique<CanonicalSum>(place);
}

}  // namespace cartan::shard
