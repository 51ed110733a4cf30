#include "cartan/shard/gradient_reducer.hpp"

#include <algorithm>

#include "cartan/core/clock.hpp"
#include "cartan/core/narrow.hpp"

namespace cartan::shard {

GradientReducer::GradientReducer(FlatState& state, comm::Communicator& plane, comm::Communicator* replicas,
                                 const ReducerOptions& options, device::Stream& stream)
    : state_(state),
      plane_(plane),
      replicas_(replicas),
      options_(options),
      tree_(options.global_batch),
      stream_(stream) {
  options_.bucket_elements = round_up(std::max<Index>(options.bucket_elements, 1), device::kSumBlock);
}

template <class Visit>
void GradientReducer::for_each_part(std::size_t unit, const Visit& visit) const {
  const FlatLayout& layout = state_.layout();
  visit(layout.units()[unit].gradient);
  const bool is_head = layout.units()[unit].number + 1 == layout.model_units();
  if (is_head && layout.tied_gradient()) visit(*layout.tied_gradient());
}

void GradientReducer::unit_ready(std::size_t unit, LeafRange leaves, bool last) {
  const bool is_transient = state_.layout().gradient_life() == GradientLife::transient;
  if (!last && !is_transient) return;
  for_each_part(unit, [&](const GradientPart& part) {
    if (state_.layout().place().stage == 0)
      extend_bucket(part);
    else
      reduce_to_owner(part, leaves, last);
  });
}

void GradientReducer::extend_bucket(const GradientPart& part) {
  const LeafRange range{part.begin, part.begin + round_up(part.elements, device::kSumBlock)};
  const bool is_empty = bucket_.begin == bucket_.end;
  if (!is_empty && range.end == bucket_.begin) {
    bucket_.begin = range.begin;
  } else if (!is_empty && range.begin == bucket_.end) {
    bucket_.end = range.end;
  } else {
    flush_bucket(1);
    bucket_ = range;
  }
  flush_bucket(options_.bucket_elements);
}

// Cuts off and reduces buckets while at least so many elements are complete.
void GradientReducer::flush_bucket(Index at_least) {
  if (bucket_.end - bucket_.begin < at_least) return;
  stream_.wait(state_.device().compute_stream().record());
  while (bucket_.end - bucket_.begin >= at_least) {
    const Index count = std::min(options_.bucket_elements, bucket_.end - bucket_.begin);
    bucket_.end -= count;
    comm::PartialSums sums{&tree_, {}, count, {}, options_.parts};
    for (float* slot : state_.slots()) sums.slots.push_back(slot + bucket_.end);
    pending_.push_back(plane_.all_reduce(sums, stream_));
  }
}

void GradientReducer::reduce_to_owner(const GradientPart& part, LeafRange leaves, bool last) {
  const ShardPlace& place = state_.layout().place();
  comm::PartialSums sums{&tree_, {}, part.elements, {}, options_.parts, place.width};
  for (float* slot : state_.slots()) sums.slots.push_back(slot + part.begin);
  std::vector<float*> stack{state_.slots()[0] + part.begin + part.alone.begin};
  if (state_.layout().gradient_life() == GradientLife::transient) {
    sums.leaves = leaves;
    stack = state_.owned_stack(part);
  }
  stream_.wait(state_.device().compute_stream().record());
  const device::Event reduced = plane_.reduce_scatter(sums, std::move(stack), stream_);
  state_.set_busy(part, reduced);
  pending_.push_back(reduced);
  if (last && replicas_ != nullptr) gather_from_replicas(part);
}

void GradientReducer::gather_from_replicas(const GradientPart& part) {
  const ShardPlace& place = state_.layout().place();
  std::vector<comm::ByteView> parts;
  for (int replica = 0; replica < replicas_->size(); ++replica) {
    const LeafRange chunk = comm::chunk_range(part.elements, replica * place.width + place.rank % place.width,
                                              place.size, place.width);
    const device::Vector values = state_.gradient(part, chunk.begin, chunk.end - chunk.begin);
    parts.emplace_back(static_cast<std::byte*>(values.data),
                       narrow<std::size_t>(values.size) * sizeof(float));
  }
  pending_.push_back(replicas_->all_gather_parts(std::move(parts), stream_));
}

double GradientReducer::finish() {
  const auto begin = Clock::now();
  flush_bucket(1);
  for (const device::Event& event : pending_) {
    event.wait();
    state_.device().compute_stream().wait(event);
  }
  pending_.clear();
  return seconds_since(begin);
}

}  // namespace cartan::shard
