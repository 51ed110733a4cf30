// Streams order work, events mark points in it. On `cpu` the compute stream runs each operation at once on
// the calling thread; further streams are queues with a thread of their own, which is how communication
// overlaps computing.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace cartan::device {

/// A point in a stream. A default-made event has always happened. Copies refer to the same point.
class Event {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual bool done() const = 0;
    /// Blocks the host. Rethrows the exception of the work before the event, if it failed.
    virtual void wait() const = 0;
  };

  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  bool done() const { return state_ == nullptr || state_->done(); }
  void wait() const {
    if (state_ != nullptr) state_->wait();
  }
  /// For the device that made the event; null for one that has always happened.
  const State* state() const { return state_.get(); }

 private:
  std::shared_ptr<State> state_;
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual const std::string& name() const = 0;
  /// An event that happens when everything enqueued so far is done.
  virtual Event record() = 0;
  /// What is enqueued from now on starts after `event`.
  virtual void wait(const Event& event) = 0;
  /// Blocks the host until everything enqueued is done. Rethrows the first failure.
  virtual void synchronize() = 0;
};

/// A stream whose work is host code: every stream of `cpu`, and what MPI's communicators run on.
class HostStream : public Stream {
 public:
  /// Runs `task` in order: at once (inline stream) or on the stream's thread. After a failure later tasks are
  /// dropped.
  virtual Event submit(std::function<void()> task) = 0;
};

/// Runs everything on the calling thread at once.
std::unique_ptr<HostStream> make_inline_stream(std::string name);
/// Runs tasks one after another on a thread of its own.
std::unique_ptr<HostStream> make_threaded_stream(std::string name);

}  // namespace cartan::device
