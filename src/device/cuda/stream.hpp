// Streams and events of a GPU. Events come from a pool, because a step records hundreds of them.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cartan/device/stream.hpp"

namespace cartan::device::cuda {

/// Thread-safe. Outlives what it lends.
class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  EventPool() = default;
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  ~EventPool();

  /// A point in `stream`, here and now.
  Event record(cudaStream_t stream);
  /// What is behind an event of this pool's kind, or null.
  static cudaEvent_t native(const Event& event);

 private:
  class Point;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

/// Work for a stream that is still on the host.
class HeldWork {
 public:
  virtual ~HeldWork() = default;
  /// Enqueues it.
  virtual void flush() = 0;
};

class CudaStream : public Stream {
 public:
  CudaStream(std::string name, std::shared_ptr<EventPool> events);
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  /// Finishes what is enqueued.
  ~CudaStream() override;

  const std::string& name() const override { return name_; }
  Event record() override { return events_->record(native()); }
  /// An event of another kind of device is waited for by the host.
  void wait(const Event& event) override;
  void synchronize() override;
  /// For who enqueues work: what is held comes first.
  cudaStream_t native() {
    if (held_ != nullptr) held_->flush();
    return native_;
  }
  /// From now on some work for the stream is held there; null: none.
  void hold(HeldWork* held) { held_ = held; }

 private:
  std::string name_;
  std::shared_ptr<EventPool> events_;
  cudaStream_t native_ = nullptr;
  HeldWork* held_ = nullptr;
};

/// Throws InternalError if the stream belongs to another kind of device.
CudaStream& cuda_stream(Stream& stream);

}  // namespace cartan::device::cuda
