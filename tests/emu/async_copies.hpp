// Asynchronous copies to shared memory (cp.async) of one thread. The target reads as NaN until the thread has
// waited, so that a wait that is missing shows in the results, whatever the schedule.
#pragma once

#include <deque>
#include <vector>

namespace emu {

class AsyncCopies {
 public:
  void clear();
  /// `code` is the instruction, for findings.
  void start(void* shared, const void* global, const void* code);
  void commit();
  /// The oldest groups end until `left` are under way.
  void wait(std::size_t left);
  bool is_any_under_way() const { return !uncommitted_.empty() || !groups_.empty(); }

 private:
  struct Copy {
    void* to;
    const void* from;
    const void* code;
  };
  std::vector<Copy> uncommitted_;
  std::vector<std::vector<Copy>> groups_;
};

}  // namespace emu
