#include "async_copies.hpp"

#include <cstring>
#include <utility>

#include "checker.hpp"
#include "fibers.hpp"

namespace emu {
namespace {

constexpr std::size_t kBytes = 16;

}  // namespace

void AsyncCopies::clear() {
  uncommitted_.clear();
  groups_.clear();
}

void AsyncCopies::start(void* shared, const void* global, const void* code) {
  // The bytes may be written from now on, and are read and written once more at the wait: whoever touches
  // them in between races with one of the two.
  check_access(global, kBytes, AccessKind::load, code);
  check_access(shared, kBytes, AccessKind::store, code);
  std::memset(shared, 0xff, kBytes);
  uncommitted_.push_back({shared, global, code});
}

void AsyncCopies::commit() { groups_.push_back(std::exchange(uncommitted_, {})); }

void AsyncCopies::wait(std::size_t left) {
  if (groups_.size() <= left) return;
  const auto end = groups_.end() - static_cast<std::ptrdiff_t>(left);
  for (auto group = groups_.begin(); group != end; ++group) {
    for (const Copy& copy : *group) {
      check_repeated_access(copy.from, kBytes, AccessKind::load, copy.code);
      check_repeated_access(copy.to, kBytes, AccessKind::store, copy.code);
      std::memcpy(copy.to, copy.from, kBytes);
    }
  }
  groups_.erase(groups_.begin(), end);
}

void copy_async16(void* shared, const void* global) {
  this_fiber().copies.start(shared, global, __builtin_return_address(0));
}
void copy_async_commit() { this_fiber().copies.commit(); }
void copy_async_wait(unsigned left) { this_fiber().copies.wait(left); }

void load16(void* to, const void* from) {
  check_access(from, kBytes, AccessKind::load, __builtin_return_address(0));
  std::memcpy(to, from, kBytes);
}
void store16(void* to, const void* from) {
  check_access(to, kBytes, AccessKind::store, __builtin_return_address(0));
  std::memcpy(to, from, kBytes);
}

}  // namespace emu
