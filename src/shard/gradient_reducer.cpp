#include "cartan/shard/gradient_reducer.hpp"

#include <algorithm>

#include "cartan/core/clock.hpp"
#include "cartan/core/narrow.hpp"
#include "shard/gradient_hook.hpp"
#include "shard/gradient_sum.hpp"

namespace cartan::shard {
namespace {

/// The most elements that a GradientSum is asked for at a time.
Index most_elements(const FlatLayout& layout, Index bucket_elements) {
  if (layout.place().stage == 0) return std::min(bucket_elements, layout.gradient_elements());
  return layout.largest_gradient();
}

}  // namespace

GradientReducer::GradientReducer(FlatState& state, comm::Communicator& plane, comm::Communicator* replicas,
                                 const ReducerOptions& options, device::Stream& stream)
    : state_(state),
      replicas_(replicas),
      stream_(stream),
      bucket_elements_(round_up(std::max<Index>(options.bucket_elements, 1), device::kSumBlock)),
      warmup_(options.hook.warmup) {
  const ExchangePlace place{state, plane, stream, CanonicalTree(options.global_batch), options.parts};
  const bool sends = plane.size() > 1;
  if (sends && options.wire != DType::f32)
    sum_ = make_rounded_sum(place, options.wire, most_elements(state.layout(), bucket_elements_));
  else
    sum_ = sends && options.library_sums ? make_library_sum(place) : make_canonical_sum(place);
  if (sends) hook_ = make_hook(options.hook, place);
}

GradientReducer::~GradientReducer() = default;

void GradientReducer::begin_step(Index update) { compresses_ = hook_ != nullptr && update > warmup_; }

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
    if (part.elements == 0) return;
    if (compresses_)
      pending_.push_back(hook_->exchange(part));
    else if (state_.layout().place().stage == 0)
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
  flush_bucket(bucket_elements_);
}

// Cuts off and reduces buckets while at least so many elements are complete.
void GradientReducer::flush_bucket(Index at_least) {
  while (bucket_.end - bucket_.begin >= at_least) {
    const Index count = std::min(bucket_elements_, bucket_.end - bucket_.begin);
    bucket_.end -= count;
    pending_.push_back(sum_->all_reduce(bucket_.end, count));
  }
}

void GradientReducer::reduce_to_owner(const GradientPart& part, LeafRange leaves, bool last) {
  const device::Event reduced = sum_->reduce_scatter(part, leaves);
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
