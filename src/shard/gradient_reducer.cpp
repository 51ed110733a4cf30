#include "cartan/shard/gradient_reducer.hpp"

#include <algorithm>

#include "cartan/core/clock.hpp"
#include "cartan/core/narrow.hpp"

namespace cartan::shard {

GradientReducer::GradientReducer(FlatState& state, comm::Communicator& plane, const CanonicalTree& tree,
                                 Index bucket_elements, device::Stream& stream)
    : state_(state),
      plane_(plane),
      tree_(tree),
      bucket_elements_(ceil_div(std::max<Index>(bucket_elements, 1), device::kSumBlock) * device::kSumBlock),
      stream_(stream),
      reduced_from_(state.layout().gradient_elements()) {}

void GradientReducer::reduce(Index begin, Index end) {
  comm::PartialSums sums{&tree_, {}, end - begin};
  for (float* slot : state_.slots()) sums.slots.push_back(slot + begin);
  pending_.push_back(plane_.all_reduce(sums, stream_));
}

void GradientReducer::unit_ready(std::size_t unit) {
  const Index ready_from = state_.layout().units()[unit].gradient_begin;
  if (reduced_from_ - ready_from < bucket_elements_ && unit != 0) return;
  stream_.wait(state_.device().compute_stream().record());
  while (reduced_from_ - ready_from >= bucket_elements_) {
    reduce(reduced_from_ - bucket_elements_, reduced_from_);
    reduced_from_ -= bucket_elements_;
  }
  if (unit == 0 && reduced_from_ > ready_from) {
    reduce(ready_from, reduced_from_);
    reduced_from_ = ready_from;
  }
}

double GradientReducer::finish() {
  const auto begin = Clock::now();
  for (const device::Event& event : pending_) {
    event.wait();
    state_.device().compute_stream().wait(event);
  }
  pending_.clear();
  reduced_from_ = state_.layout().gradient_elements();
  return seconds_since(begin);
}

}  // namespace cartan::shard
