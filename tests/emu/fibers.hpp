// The threads of a block as fibers: each runs until it waits for others, then the next one that can go on
// does, in an order that the tests choose. Boost.Context switches stacks; which fiber is next is decided
// here.
#pragma once

#include <array>
#include <boost/context/detail/fcontext.hpp>
#include <memory>
#include <string>
#include <vector>

#include "async_copies.hpp"
#include "block_barrier.hpp"
#include "kernel_body.hpp"
#include "thread.hpp"
#include "warp_meetings.hpp"

namespace emu {

struct Fiber : Thread {
  enum class State : unsigned char { fresh, ready, waiting, ended };

  State state = State::fresh;
  boost::context::detail::fcontext_t context = nullptr;
  int stack = -1;
  // What it waits in. Without a rendezvous: a barrier of the block.
  Sync sync{};
  Where where{};
  const Rendezvous* rendezvous = nullptr;
  AsyncCopies copies;
};

/// The block that an OS thread runs. It is used for one block after another.
class Block {
 public:
  static constexpr unsigned kMostThreads = 1024;
  static constexpr std::size_t kMostSharedBytes = std::size_t{256} << 10;

  Block();

  /// The kernel of the next blocks.
  void prepare(const Body& body, dim3 threads, std::size_t shared_bytes);
  /// Runs a block, its threads in this order. Returns whether all of them came to their end; if not, see
  /// report().
  bool run(const std::vector<unsigned>& order);
  const std::string& report() const { return report_; }

  Fiber& fiber(unsigned rank) { return fibers_[rank]; }
  unsigned size() const { return size_; }
  unsigned warps() const { return (size_ + 31) / 32; }
  unsigned live() const { return live_; }
  /// Lanes that have not ended.
  unsigned live_lanes(unsigned warp) const { return live_lanes_[warp]; }
  const std::vector<unsigned>& order() const { return order_; }

  /// A waiting thread can go on, after those that already can.
  void make_ready(unsigned rank);
  /// The running thread waits until somebody makes it ready.
  void wait(Sync sync, Where where, const Rendezvous* rendezvous);
  /// Ends the block; does not return to the thread that runs.
  [[noreturn]] void give_up(std::string report);

  BlockBarrier& barrier() { return barrier_; }
  WarpMeetings& meetings() { return meetings_; }

  void* shared() const { return shared_; }
  std::size_t shared_bytes() const { return shared_bytes_; }
  /// Whether an address lies in what the emulator itself keeps for threads: stacks, parameters, fibers.
  bool is_own_memory(const void* address) const {
    return address >= memory_ && address < memory_ + kMemoryBytes;
  }

 private:
  static constexpr std::size_t kStackBytes = std::size_t{64} << 10;
  /// Stacks begin in different sets of the cache.
  static constexpr std::size_t kStride = kStackBytes + 320;
  static constexpr std::size_t kFibersAt = kMostParameterBytes;
  static constexpr std::size_t kStacksAt = (kFibersAt + kMostThreads * sizeof(Fiber) + 4095) / 4096 * 4096;
  static constexpr std::size_t kMemoryBytes = kStacksAt + (kMostThreads + 1) * kStride;

  static void enter(boost::context::detail::transfer_t from);
  void note_arrival(boost::context::detail::transfer_t from);
  void start_threads(const std::vector<unsigned>& order);
  void end_thread();
  Fiber& take_next();
  /// Goes on with the next thread, or with run() if none can go on. `leaving` may come back; null: it has
  /// ended.
  void switch_from(Fiber* leaving);
  std::string describe_deadlock();

  unsigned char* memory_ = nullptr;  ///< parameters, fibers, stacks
  unsigned char* stacks_ = nullptr;
  unsigned char* shared_ = nullptr;
  std::size_t shared_bytes_ = 0;
  const Body* body_ = nullptr;
  dim3 threads_{};
  unsigned size_ = 0, live_ = 0;
  std::array<unsigned, kMostThreads / 32> live_lanes_{};
  Fiber* fibers_ = nullptr;
  std::vector<unsigned> order_;
  std::vector<unsigned> ready_;  ///< from next_ on
  std::size_t next_ = 0;
  std::vector<int> free_stacks_;
  boost::context::detail::fcontext_t scheduler_ = nullptr;  ///< where run() waits
  BlockBarrier barrier_;
  WarpMeetings meetings_;
  std::string report_;
};

/// The block that this OS thread runs or has run; null before the first one.
extern thread_local constinit Block* current;
inline Block& this_block() { return *current; }
/// Makes a block for this OS thread if there is none.
Block& prepare_this_block();
/// The running thread.
inline Fiber& this_fiber() { return *static_cast<Fiber*>(self); }

}  // namespace emu
