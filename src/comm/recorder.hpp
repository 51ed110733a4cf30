// The record of what a communicator did, which watchdog, tests and report read: the latest calls in a ring,
// and totals.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>

#include "cartan/comm/communicator.hpp"

namespace cartan::comm {

/// Of several communicators together.
struct TrafficTotals {
  std::atomic<std::uint64_t> bytes_sent = 0;
  std::atomic<double> seconds = 0;
};

/// Thread-safe: data-plane calls are opened by the caller and closed by the stream's thread.
class Recorder {
 public:
  static constexpr std::size_t kCapacity = 256;

  Recorder() = default;
  /// What is counted here is added there too.
  explicit Recorder(std::shared_ptr<TrafficTotals> totals) : totals_(std::move(totals)) {}

  /// Notes a call in the order of issue; returns its sequence number, from 0. `verb` is a literal; `sent` is
  /// of the data plane (traffic.hpp).
  std::uint64_t open(std::string_view verb, std::size_t bytes, std::uint64_t sent = 0);
  void close(std::uint64_t sequence, double seconds, bool on_data_plane);

  /// Oldest first.
  std::vector<CallRecord> recent() const;
  std::uint64_t calls() const;
  double data_plane_seconds() const;
  std::uint64_t bytes_sent() const;

 private:
  mutable std::mutex mutex_;
  std::array<CallRecord, kCapacity> ring_{};
  std::uint64_t calls_ = 0, bytes_sent_ = 0;
  double data_plane_seconds_ = 0;
  std::shared_ptr<TrafficTotals> totals_;
};

/// Runs `work` and closes the call with its duration; a call that throws stays open, as one that hangs does.
template <class Work>
void timed(Recorder& recorder, std::uint64_t sequence, bool on_data_plane, Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  recorder.close(sequence, elapsed.count(), on_data_plane);
}

}  // namespace cartan::comm
