#include "fibers.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "device.h"

namespace emu {

namespace context = boost::context::detail;

thread_local constinit Thread* self = nullptr;
thread_local constinit Block* current = nullptr;

namespace {

unsigned char* reserve(std::size_t bytes) {
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("emu: cannot reserve memory for the threads of a block");
    std::abort();
  }
  return static_cast<unsigned char*>(memory);
}

}  // namespace

Block& prepare_this_block() {
  // Never destroyed: the progress thread may be in a kernel when the program ends.
  if (current == nullptr) current = new Block;
  return *current;
}

Block::Block()
    : memory_(reserve(kMemoryBytes)), stacks_(memory_ + kStacksAt), shared_(reserve(kMostSharedBytes)) {
  fibers_ = new (memory_ + kFibersAt) Fiber[kMostThreads];
}

void Block::prepare(const Body& body, dim3 threads, std::size_t shared_bytes) {
  body_ = &body;
  std::memcpy(memory_, body.args, body.bytes);
  threads_ = threads;
  size_ = threads.x * threads.y * threads.z;
  shared_bytes_ = shared_bytes;
  report_.clear();
}

bool Block::run(const std::vector<unsigned>& order) {
  std::memset(shared_, 0xff, shared_bytes_);  // reads as NaN
  start_threads(order);
  barrier_.reset();
  meetings_.reset();
  scheduler_ = nullptr;
  switch_from(nullptr);
  if (report_.empty() && live_ > 0) report_ = describe_deadlock();
  return report_.empty();
}

void Block::start_threads(const std::vector<unsigned>& order) {
  order_ = order;
  ready_ = order;
  next_ = 0;
  live_ = size_;
  free_stacks_.clear();
  live_lanes_.fill(0);
  for (unsigned rank = size_; rank-- > 0;) {
    Fiber& fiber = fibers_[rank];
    fiber.index = {rank % threads_.x, rank / threads_.x % threads_.y, rank / threads_.x / threads_.y};
    fiber.rank = rank;
    fiber.lane = rank % 32;
    fiber.warp = rank / 32;
    fiber.block_epoch = fiber.warp_epoch = 0;
    fiber.state = Fiber::State::fresh;
    fiber.rendezvous = nullptr;
    fiber.copies.clear();
    live_lanes_[fiber.warp] |= 1u << fiber.lane;
    free_stacks_.push_back(static_cast<int>(rank));
  }
}

void Block::make_ready(unsigned rank) {
  fibers_[rank].state = Fiber::State::ready;
  ready_.push_back(rank);
}

void Block::wait(Sync sync, Where where, const Rendezvous* rendezvous) {
  Fiber& fiber = this_fiber();
  fiber.state = Fiber::State::waiting;
  fiber.sync = sync;
  fiber.where = where;
  fiber.rendezvous = rendezvous;
  switch_from(&fiber);
  fiber.rendezvous = nullptr;
}

void Block::give_up(std::string report) {
  report_ = std::move(report);
  for (;;) switch_from(&this_fiber());
}

Fiber& Block::take_next() {
  Fiber& fiber = fibers_[ready_[next_++]];
  if (next_ == ready_.size()) {
    ready_.clear();
    next_ = 0;
  }
  self = &fiber;
  threadIdx = fiber.index;
  return fiber;
}

void Block::switch_from(Fiber* leaving) {
  context::fcontext_t target = scheduler_;
  if (ready_.empty() || !report_.empty()) {
    self = nullptr;
  } else {
    Fiber& next = take_next();
    if (next.state == Fiber::State::fresh) {
      next.stack = free_stacks_.back();
      free_stacks_.pop_back();
      unsigned char* const top = stacks_ + static_cast<std::size_t>(next.stack + 1) * kStride;
      next.context = context::make_fcontext(top, kStackBytes, enter);
    }
    next.state = Fiber::State::ready;
    if (&next == leaving) return;
    target = next.context;
  }
  note_arrival(context::jump_fcontext(target, leaving));
}

void Block::note_arrival(context::transfer_t from) {
  if (from.data != nullptr)
    static_cast<Fiber*>(from.data)->context = from.fctx;
  else if (scheduler_ == nullptr)
    scheduler_ = from.fctx;
}

void Block::enter(context::transfer_t from) {
  Block& block = this_block();
  block.note_arrival(from);
  for (;;) {
    block.body_->invoke(block.body_->fn, block.memory_);
    block.end_thread();
    const int stack = this_fiber().stack;
    const bool is_next_fresh = block.report_.empty() && !block.ready_.empty() &&
                               block.fiber(block.ready_[block.next_]).state == Fiber::State::fresh;
    if (is_next_fresh) {  // without a switch: threads that never wait cost a call
      Fiber& next = block.take_next();
      next.stack = stack;
      next.state = Fiber::State::ready;
      continue;
    }
    block.free_stacks_.push_back(stack);
    block.switch_from(nullptr);
  }
}

void Block::end_thread() {
  Fiber& fiber = this_fiber();
  if (fiber.copies.is_any_under_way())
    report_ = "a thread ended with asynchronous copies that it did not wait for";
  fiber.state = Fiber::State::ended;
  --live_;
  live_lanes_[fiber.warp] &= ~(1u << fiber.lane);
  barrier_.thread_ended(*this);
  meetings_.thread_ended(*this, fiber.warp);
}

std::string Block::describe_deadlock() {
  const auto text_of = [&](const Fiber& fiber) {
    if (fiber.state == Fiber::State::ended) return std::string("ended");
    std::string text = std::string("wait in ") + name_of(fiber.sync) + " at " + fiber.where.file + ":" +
                       std::to_string(fiber.where.line);
    if (fiber.rendezvous != nullptr) {
      char mask[32];
      std::snprintf(mask, sizeof mask, " mask 0x%x", fiber.rendezvous->mask);
      text += mask;
    }
    return text;
  };
  std::string text = "deadlock: no thread of the block can go on";
  for (unsigned first = 0, last = 0; first < size_; first = last) {
    const std::string state = text_of(fibers_[first]);
    for (last = first + 1; last < size_ && text_of(fibers_[last]) == state;) ++last;
    text += "\n  threads " + std::to_string(first) + ".." + std::to_string(last - 1) + ": " + state;
  }
  return text;
}

void fail(Where where, const char* what) {
  const auto number = [](unsigned n) { return std::to_string(n); };
  this_block().give_up(std::string(what) + " (block " + number(blockIdx.x) + "," + number(blockIdx.y) + "," +
                       number(blockIdx.z) + " thread " + number(self->rank) + ") at " + where.file + ":" +
                       std::to_string(where.line));
}

void* dynamic_shared() { return this_block().shared(); }

}  // namespace emu
