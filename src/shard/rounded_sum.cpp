// 16-bit gradients on the wire, summed in fp32: half the bytes on the way to the owners. The bits depend on
// the number of ranks, because each rounds its own sum.
#include <algorithm>

#include "cartan/core/narrow.hpp"
#include "shard/gradient_sum.hpp"

namespace cartan::shard {
namespace {

using device::Matrix;

class RoundedSum : public GradientSum {
 public:
  RoundedSum(const ExchangePlace& place, DType wire, Index most_elements)
      : place_(place), ranks_(place.plane.size()), wire_(wire) {
    const auto allocate = [&](const char* label) {
      return place.plane.allocate_exchange(place.state.device(), bytes_of(most_elements),
                                           device::MemoryKind::communication, label);
    };
    sent_ = allocate("gradients on their way out");
    received_ = allocate("gradients on their way in");
  }

  device::Event all_reduce(Index begin, Index count) override {
    place_.fold_own(begin, count, place_.all_leaves());
    float* const values = place_.state.slots()[0] + begin;
    const LeafRange own = comm::chunk_range(count, place_.plane.rank(), ranks_);
    sum_chunks({values, count, 0}, values + own.begin, false);
    std::vector<comm::ByteView> parts;
    for (int rank = 0; rank < ranks_; ++rank) {
      const LeafRange chunk = comm::chunk_range(count, rank, ranks_);
      parts.emplace_back(reinterpret_cast<std::byte*>(values + chunk.begin),
                         narrow<std::size_t>(chunk.end - chunk.begin) * sizeof(float));
    }
    return place_.plane.all_gather_parts(std::move(parts), place_.stream);
  }

  device::Event reduce_scatter(const GradientPart& part, LeafRange leaves) override {
    const FlatLayout& layout = place_.state.layout();
    const bool is_transient = layout.gradient_life() == GradientLife::transient;
    if (!is_transient) leaves = place_.all_leaves();
    place_.fold_own(part.begin, part.elements, leaves);
    float* const values = place_.state.slots()[0] + part.begin;
    float* const sum = is_transient ? place_.state.owned_stack(part)[0] : values + part.alone.begin;
    sum_chunks({values, part.elements, layout.place().width}, sum, leaves.begin > 0);
    return place_.stream.record();
  }

 private:
  /// Of one exchange: this rank's summands, cut by chunk_range.
  struct Summands {
    float* values;
    Index count;
    int shard;
  };

  /// Elements that are sent to each rank: the widest chunk.
  Index width_of(Index count) const {
    return ceil_div(ceil_div(count, device::kSumBlock), ranks_) * device::kSumBlock;
  }
  std::size_t bytes_of(Index count) const {
    return narrow<std::size_t>(width_of(count) * ranks_) * size_of(wire_);
  }

  /// sum = sum * accumulates + the sum over ranks of this rank's chunk.
  void sum_chunks(const Summands& own, float* sum, bool accumulates) {
    device::Ops& ops = place_.state.device().ops();
    const Index width = width_of(own.count);
    const auto chunk_of = [&](int rank) { return comm::chunk_range(own.count, rank, ranks_, own.shard); };
    for (int rank = 0; rank < ranks_; ++rank) {
      const LeafRange chunk = chunk_of(rank);
      const Index count = chunk.end - chunk.begin;
      if (count > 0)
        ops.copy(device::as_matrix(own.values + chunk.begin, DType::f32, 1, count),
                 device::as_matrix(device::advance(sent_.data(), wire_, rank * width), wire_, 1, count),
                 place_.stream);
    }
    const std::size_t bytes = bytes_of(own.count);
    place_.plane.all_to_all({sent_.as<const std::byte>(), bytes}, {received_.as<std::byte>(), bytes},
                            place_.stream);
    const LeafRange chunk = chunk_of(place_.plane.rank());
    const Index count = chunk.end - chunk.begin;
    if (count == 0) return;
    const Matrix out = device::as_matrix(sum, DType::f32, 1, count);
    ops.sum_parts({received_.data(), wire_, ranks_, count, width}, ranks_, accumulates ? out : Matrix{}, out,
                  place_.stream);
  }

  ExchangePlace place_;
  int ranks_;
  DType wire_;
  device::Buffer sent_, received_;
};

}  // namespace

std::unique_ptr<GradientSum> make_rounded_sum(const ExchangePlace& place, DType wire, Index most_elements) {
  return std::make_unique<RoundedSum>(place, wire, most_elements);
}

}  // namespace cartan::shard
