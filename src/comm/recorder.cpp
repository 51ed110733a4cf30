// A bounded ring of call records.
#include "comm/recorder.hpp"

#include <algorithm>

namespace cartan::comm {

std::uint64_t Recorder::open(std::string_view verb, std::size_t bytes, std::uint64_t sent) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t sequence = calls_++;
  bytes_sent_ += sent;
  if (totals_) totals_->bytes_sent += sent;
  ring_[sequence % kCapacity] = {
      .sequence = sequence, .verb = verb, .bytes = bytes, .sent = sent, .seconds = 0, .done = false};
  return sequence;
}

void Recorder::close(std::uint64_t sequence, double seconds, bool on_data_plane) {
  const std::lock_guard lock(mutex_);
  if (on_data_plane) data_plane_seconds_ += seconds;
  if (on_data_plane && totals_) totals_->seconds += seconds;
  CallRecord& record = ring_[sequence % kCapacity];
  if (record.sequence != sequence) return;  // so many calls later that the ring has moved on
  record.seconds = seconds;
  record.done = true;
}

std::vector<CallRecord> Recorder::recent() const {
  const std::lock_guard lock(mutex_);
  std::vector<CallRecord> records;
  const std::uint64_t kept = std::min<std::uint64_t>(calls_, kCapacity);
  for (std::uint64_t i = calls_ - kept; i < calls_; ++i) records.push_back(ring_[i % kCapacity]);
  return records;
}

std::uint64_t Recorder::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

double Recorder::data_plane_seconds() const {
  const std::lock_guard lock(mutex_);
  return data_plane_seconds_;
}

std::uint64_t Recorder::bytes_sent() const {
  const std::lock_guard lock(mutex_);
  return bytes_sent_;
}

}  // namespace cartan::comm
