// __syncthreads and its kind: all threads of a block that have not ended meet at one place.
#pragma once

#include "thread.hpp"

namespace emu {

class Block;

class BlockBarrier {
 public:
  void reset() { arrived_ = 0; }
  int meet(Block& block, Sync sync, int predicate, Where where);
  /// The others may have waited for it only.
  void thread_ended(Block& block);

 private:
  void combine(int predicate);
  void release(Block& block);

  unsigned arrived_ = 0;
  Sync sync_{};
  Where where_{};
  int combined_ = 0, result_ = 0;
};

const char* name_of(Sync sync);

}  // namespace emu
