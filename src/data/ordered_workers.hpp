// Threads that work on items and hand them back in the order in which they came.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace cartan::data {

/// One thread gives and takes. At most `capacity` items are inside at a time.
template <class Item>
class OrderedWorkers {
 public:
  /// `work` is called by several threads at once, each with its own item. With `threads` of 1 there are none:
  /// give() does the work.
  OrderedWorkers(int threads, std::size_t capacity, std::function<void(Item&)> work)
      : capacity_(capacity), work_(std::move(work)) {
    for (int i = 0; threads > 1 && i < threads; ++i) threads_.emplace_back([this] { run(); });
  }
  ~OrderedWorkers() {
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    todo_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  OrderedWorkers(const OrderedWorkers&) = delete;
  OrderedWorkers& operator=(const OrderedWorkers&) = delete;

  bool empty() const { return entries_.empty(); }
  bool full() const { return entries_.size() >= capacity_; }
  /// Only if not full().
  void give(Item&& item) {
    auto entry = std::make_shared<Entry>();
    entry->item = std::move(item);
    if (threads_.empty()) {
      do_work(*entry);
      entry->done = true;
    } else {
      {
        const std::lock_guard lock(mutex_);
        waiting_.push_back(entry);
      }
      todo_.notify_one();
    }
    entries_.push_back(std::move(entry));
  }
  /// Whether take() would not wait.
  bool ready() {
    if (entries_.empty()) return false;
    const std::lock_guard lock(mutex_);
    return entries_.front()->done;
  }
  /// The oldest item, finished; waits for it. Throws what `work` threw for it. Only if not empty().
  Item take() {
    const std::shared_ptr<Entry> entry = entries_.front();
    {
      std::unique_lock lock(mutex_);
      done_.wait(lock, [&] { return entry->done; });
    }
    entries_.pop_front();
    if (entry->failure) std::rethrow_exception(entry->failure);
    return std::move(entry->item);
  }

 private:
  struct Entry {
    Item item{};
    std::exception_ptr failure;
    bool done = false;
  };

  void do_work(Entry& entry) {
    try {
      work_(entry.item);
    } catch (...) {
      entry.failure = std::current_exception();
    }
  }

  void run() {
    while (true) {
      std::shared_ptr<Entry> entry;
      {
        std::unique_lock lock(mutex_);
        todo_.wait(lock, [&] { return stops_ || !waiting_.empty(); });
        if (stops_) return;
        entry = std::move(waiting_.front());
        waiting_.pop_front();
      }
      do_work(*entry);
      {
        const std::lock_guard lock(mutex_);
        entry->done = true;
      }
      done_.notify_one();
    }
  }

  std::size_t capacity_;
  std::function<void(Item&)> work_;
  std::deque<std::shared_ptr<Entry>> entries_;  ///< in order; the giving thread's alone

  std::mutex mutex_;  // guards what follows, and Entry::done
  std::condition_variable todo_, done_;
  std::deque<std::shared_ptr<Entry>> waiting_;
  bool stops_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace cartan::data
