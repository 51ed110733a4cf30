// Sums by the GPUs' library, in its own order: for comparison, and where reductions inside of the network are
// faster. The bits depend on the number of ranks, and on what the library chooses.
#include "cartan/core/narrow.hpp"
#include "shard/gradient_sum.hpp"

namespace cartan::shard {
namespace {

class LibrarySum : public GradientSum {
 public:
  explicit LibrarySum(const ExchangePlace& place) : place_(place) {}

  device::Event all_reduce(Index begin, Index count) override {
    return place_.plane.library_all_reduce(own_sum(begin, count, place_.all_leaves()), place_.stream);
  }

  device::Event reduce_scatter(const GradientPart& part, LeafRange leaves) override {
    const FlatLayout& layout = place_.state.layout();
    const bool is_transient = layout.gradient_life() == GradientLife::transient;
    if (!is_transient) leaves = place_.all_leaves();
    const std::span<float> values = own_sum(part.begin, part.elements, leaves);
    device::Event summed = place_.plane.library_reduce_scatter(values, layout.place().width, place_.stream);
    const Index count = part.alone.end - part.alone.begin;
    if (!is_transient || count == 0) return summed;
    // The sums of micro-batches simply run on.
    device::Ops& ops = place_.state.device().ops();
    const device::Vector more{values.data() + part.alone.begin, DType::f32, count};
    const device::Vector sum{place_.state.owned_stack(part)[0], DType::f32, count};
    if (leaves.begin > 0)
      ops.add(sum, more, place_.stream);
    else
      ops.copy(device::as_matrix(more.data, DType::f32, 1, count),
               device::as_matrix(sum.data, DType::f32, 1, count), place_.stream);
    return place_.stream.record();
  }

 private:
  /// This rank's summands, in the first slot.
  std::span<float> own_sum(Index begin, Index count, LeafRange leaves) const {
    place_.fold_own(begin, count, leaves);
    return {place_.state.slots()[0] + begin, narrow<std::size_t>(count)};
  }

  ExchangePlace place_;
};

}  // namespace

std::unique_ptr<GradientSum> make_library_sum(const ExchangePlace& place) {
  return std::make_unique<LibrarySum>(place);
}

}  // namespace cartan::shard
