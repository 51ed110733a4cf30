// Prepares micro-batches in a background thread while the last ones are computed. What is delivered depends
// on the number of the sample only: a loader that starts at the step and sample where another stopped
// continues its stream, and ranks that share a global batch deliver together what one rank would.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "cartan/core/canonical_tree.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/core/types.hpp"
#include "cartan/data/batch.hpp"
#include "cartan/data/sampler.hpp"

namespace cartan::data {

/// A rank's leaves of each global batch, in micro-batches.
struct LeafShare {
  Index first = 0, count = 0;  ///< leaves; count may be 0
  Index micro = 1;             ///< leaves of a micro-batch; the last one may be shorter
  Index stride = 0;            ///< from the first leaf of a micro-batch to that of the next; 0: micro
  Index micro_batches() const { return ceil_div(count, micro); }
  LeafRange of(Index micro_batch) const {
    const Index begin = first + micro_batch * (stride == 0 ? micro : stride);
    return {begin, begin + std::min(micro, count - micro_batch * micro)};
  }
};

struct LoaderOptions {
  Index first_step = 0, end_step = 0;  ///< steps [first_step, end_step)
  Index global_batch = 1;              ///< G: leaf j of step s is sample s * G + j + sample_offset
  Index sample_offset = 0;             ///< not 0 in a run whose G was another one in earlier steps
  LeafShare share;                     ///< of this rank
  Index depth = 2;                     ///< micro-batches prepared ahead
};

struct MicroBatch {
  Index step = 0;
  Index first_leaf = 0;  ///< row r is leaf first_leaf + r
  Batch batch;
};

/// For one consumer thread.
class BatchLoader {
 public:
  BatchLoader(std::shared_ptr<const Sampler> sampler, LoaderOptions options);
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  /// Waits for the next micro-batch and puts it in `out`; the buffers that `out` had are reused. False after
  /// the last one. Throws what the thread met (DataError), after the micro-batches before it were delivered.
  bool next(MicroBatch& out);
  /// Seconds that next() has waited so far.
  double waited_s() const { return waited_s_; }

 private:
  void produce(const std::stop_token& stop);
  /// False when the loader is being destroyed.
  bool hand_over(MicroBatch&& micro, const std::stop_token& stop);
  MicroBatch take_spare();

  std::shared_ptr<const Sampler> sampler_;
  LoaderOptions options_;
  double waited_s_ = 0;

  std::mutex mutex_;  // guards what follows
  std::condition_variable_any ready_, room_;
  std::deque<MicroBatch> queue_;
  std::vector<MicroBatch> spares_;
  std::exception_ptr failure_;
  bool done_ = false;

  std::jthread thread_;  // last: stopped and joined before the rest goes
};

}  // namespace cartan::data
