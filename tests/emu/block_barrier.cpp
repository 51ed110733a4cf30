#include "block_barrier.hpp"

#include <cstring>
#include <string>

#include "fibers.hpp"

namespace emu {
namespace {

bool is_same(Where a, Where b) { return a.line == b.line && std::strcmp(a.file, b.file) == 0; }

}  // namespace

const char* name_of(Sync sync) {
  switch (sync) {
    case Sync::block:
      return "__syncthreads";
    case Sync::block_or:
      return "__syncthreads_or";
    case Sync::block_and:
      return "__syncthreads_and";
    case Sync::block_count:
      return "__syncthreads_count";
    case Sync::syncwarp:
      return "__syncwarp";
    case Sync::shuffle:
      return "shuffle";
    case Sync::ballot:
      return "ballot";
    case Sync::mma:
      return "mma";
    case Sync::ldmatrix:
      return "ldmatrix";
  }
  return "?";
}

int meet_block(Sync sync, int predicate, Where where) {
  Block& block = this_block();
  return block.barrier().meet(block, sync, predicate, where);
}

int BlockBarrier::meet(Block& block, Sync sync, int predicate, Where where) {
  if (arrived_ == 0) {
    sync_ = sync;
    where_ = where;
    combined_ = sync == Sync::block_and ? 1 : 0;
  } else if (sync != sync_ || !is_same(where, where_)) {
    fail(where, ("divergent barrier: other threads of the block wait in " + std::string(name_of(sync_)) +
                 " at " + where_.file + ":" + std::to_string(where_.line))
                    .c_str());
  }
  combine(predicate);
  ++arrived_;
  if (arrived_ == block.live()) {
    // The last one waits as well: all go on in the order of the block.
    this_fiber().state = Fiber::State::waiting;
    release(block);
  }
  block.wait(sync, where, nullptr);
  ++self->block_epoch;
  self->warp_epoch = 0;
  return result_;
}

void BlockBarrier::combine(int predicate) {
  const int is_true = predicate != 0 ? 1 : 0;
  if (sync_ == Sync::block_or)
    combined_ |= is_true;
  else if (sync_ == Sync::block_and)
    combined_ &= is_true;
  else if (sync_ == Sync::block_count)
    combined_ += is_true;
}

void BlockBarrier::release(Block& block) {
  result_ = combined_;
  arrived_ = 0;
  for (const unsigned rank : block.order()) {
    const Fiber& fiber = block.fiber(rank);
    if (fiber.state == Fiber::State::waiting && fiber.rendezvous == nullptr) block.make_ready(rank);
  }
}

void BlockBarrier::thread_ended(Block& block) {
  if (arrived_ > 0 && arrived_ == block.live()) release(block);
}

}  // namespace emu
