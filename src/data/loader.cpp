// One producer, one consumer, a bounded queue; buffers go round, so that a steady state allocates none.
#include "cartan/data/loader.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "cartan/core/clock.hpp"
#include "cartan/core/error.hpp"

namespace cartan::data {

BatchLoader::BatchLoader(std::shared_ptr<const Sampler> sampler, LoaderOptions options)
    : sampler_(std::move(sampler)), options_(options) {
  CARTAN_ASSERT(sampler_ != nullptr && options_.share.micro > 0 && options_.depth > 0 &&
                options_.first_step >= 0 &&
                options_.first_step * options_.global_batch + options_.sample_offset >= 0);
  const LeafShare& share = options_.share;
  CARTAN_ASSERT(share.first >= 0 && share.count >= 0);
  CARTAN_ASSERT(share.count == 0 || share.of(share.micro_batches() - 1).end <= options_.global_batch);
  thread_ = std::jthread([this](const std::stop_token& stop) {
    std::exception_ptr failure;
    try {
      produce(stop);
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    done_ = true;
    ready_.notify_one();
  });
}

BatchLoader::~BatchLoader() = default;  // the jthread's destructor requests the stop, which wakes hand_over()

void BatchLoader::produce(const std::stop_token& stop) {
  const LeafShare& share = options_.share;
  std::vector<Index> samples;
  for (Index step = options_.first_step; step < options_.end_step; ++step) {
    const Index first = step * options_.global_batch + options_.sample_offset;
    for (Index m = 0; m < share.micro_batches(); ++m) {
      const LeafRange leaves = share.of(m);
      MicroBatch micro = take_spare();
      micro.step = step;
      micro.first_leaf = leaves.begin;
      samples.resize(static_cast<std::size_t>(leaves.end - leaves.begin));
      std::iota(samples.begin(), samples.end(), first + leaves.begin);
      sampler_->fill(samples, micro.batch);
      if (!hand_over(std::move(micro), stop)) return;
    }
  }
}

MicroBatch BatchLoader::take_spare() {
  const std::lock_guard lock(mutex_);
  if (spares_.empty()) return {};
  MicroBatch spare = std::move(spares_.back());
  spares_.pop_back();
  return spare;
}

bool BatchLoader::hand_over(MicroBatch&& micro, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  if (!room_.wait(lock, stop, [&] { return static_cast<Index>(queue_.size()) < options_.depth; }))
    return false;
  queue_.push_back(std::move(micro));
  ready_.notify_one();
  return true;
}

bool BatchLoader::next(MicroBatch& out) {
  const auto begin = Clock::now();
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [&] { return !queue_.empty() || done_; });
  waited_s_ += seconds_since(begin);
  if (queue_.empty()) {
    if (failure_) std::rethrow_exception(failure_);
    return false;
  }
  std::swap(out, queue_.front());
  spares_.push_back(std::move(queue_.front()));
  queue_.pop_front();
  room_.notify_one();
  return true;
}

}  // namespace cartan::data
