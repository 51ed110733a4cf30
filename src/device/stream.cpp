// Streams of host code. Both kinds share one rule for failures: the first exception is kept, later tasks are
// dropped, and whoever waits (on the stream or on an event recorded after it) gets the exception.
#include "cartan/device/stream.hpp"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace cartan::device {
namespace {

/// What a stream and its events share: how far it came, and why it stopped.
struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t finished = 0;  ///< tasks done or dropped
  std::exception_ptr failure;
  std::uint64_t failed_task = 0;  ///< number of the task that failed, counted from 1

  /// Runs one task outside the lock unless an earlier one failed.
  void run(const std::function<void()>& task) {
    std::exception_ptr error;
    bool drop = false;
    {
      const std::lock_guard lock(mutex);
      drop = failure != nullptr;
    }
    if (!drop) {
      try {
        task();
      } catch (...) {
        error = std::current_exception();
      }
    }
    {
      const std::lock_guard lock(mutex);
      ++finished;
      if (error) {
        failure = error;
        failed_task = finished;
      }
    }
    changed.notify_all();
  }

  void wait_for(std::uint64_t task) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return finished >= task; });
    if (failure && failed_task <= task) std::rethrow_exception(failure);
  }
};

class ProgressState : public Event::State {
 public:
  ProgressState(std::shared_ptr<Progress> progress, std::uint64_t task)
      : progress_(std::move(progress)), task_(task) {}
  bool done() const override {
    const std::lock_guard lock(progress_->mutex);
    return progress_->finished >= task_;
  }
  void wait() const override { progress_->wait_for(task_); }

 private:
  std::shared_ptr<Progress> progress_;
  std::uint64_t task_;
};

class InlineStream : public HostStream {
 public:
  explicit InlineStream(std::string name) : name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  Event record() override { return Event(std::make_shared<ProgressState>(progress_, submitted_)); }
  void wait(const Event& event) override {
    submit([event] { event.wait(); });
  }
  void synchronize() override { progress_->wait_for(submitted_); }
  Event submit(std::function<void()> task) override {
    ++submitted_;
    progress_->run(task);
    return record();
  }

 private:
  std::string name_;
  std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  std::uint64_t submitted_ = 0;
};

class ThreadedStream : public HostStream {
 public:
  explicit ThreadedStream(std::string name) : name_(std::move(name)), thread_([this] { loop(); }) {}

  /// Finishes what is enqueued.
  ~ThreadedStream() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    ready_.notify_one();
    thread_.join();
  }

  const std::string& name() const override { return name_; }

  Event record() override {
    const std::lock_guard lock(mutex_);
    return Event(std::make_shared<ProgressState>(progress_, submitted_));
  }

  void wait(const Event& event) override {
    submit([event] { event.wait(); });
  }

  void synchronize() override { record().wait(); }

  Event submit(std::function<void()> task) override {
    std::uint64_t number = 0;
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
      number = ++submitted_;
    }
    ready_.notify_one();
    return Event(std::make_shared<ProgressState>(progress_, number));
  }

 private:
  void loop() {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        ready_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      progress_->run(task);
    }
  }

  std::string name_;
  std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> tasks_;
  std::uint64_t submitted_ = 0;
  bool stopping_ = false;
  std::thread thread_;  // last: it starts when all else is there
};

}  // namespace

std::unique_ptr<HostStream> make_inline_stream(std::string name) {
  return std::make_unique<InlineStream>(std::move(name));
}

std::unique_ptr<HostStream> make_threaded_stream(std::string name) {
  return std::make_unique<ThreadedStream>(std::move(name));
}

}  // namespace cartan::device
