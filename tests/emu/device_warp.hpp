// Barriers, shuffles and votes of CUDA C++. The last two parameters of each are the place of the call, for
// reports.
#pragma once

#include <type_traits>

#include "thread.hpp"

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emu::meet_block(emu::Sync::block, 0, {file, line});
}
inline int __syncthreads_or(int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return emu::meet_block(emu::Sync::block_or, predicate, {file, line});
}
inline int __syncthreads_and(int predicate, const char* file = __builtin_FILE(),
                             int line = __builtin_LINE()) {
  return emu::meet_block(emu::Sync::block_and, predicate, {file, line});
}
inline int __syncthreads_count(int predicate, const char* file = __builtin_FILE(),
                               int line = __builtin_LINE()) {
  return emu::meet_block(emu::Sync::block_count, predicate, {file, line});
}

inline void __syncwarp(unsigned mask = 0xffffffffu, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  emu::sync_warp(mask, {file, line});
}

namespace emu {

/// The value of lane `source`; the caller's own where `is_in_range` says that there is no such lane.
template <class T>
T value_of_lane(unsigned mask, T value, unsigned source, bool is_in_range, Where where) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  shuffle(mask, &value, sizeof value, source, is_in_range, where);
  return value;
}

/// The lane's number in its segment of `width` lanes, and where the segment begins.
inline unsigned lane_in(int width) { return self->lane & static_cast<unsigned>(width - 1); }
inline unsigned begin_of(int width) { return self->lane & ~static_cast<unsigned>(width - 1); }

}  // namespace emu

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  const unsigned from =
      emu::begin_of(width) + (static_cast<unsigned>(source) & static_cast<unsigned>(width - 1));
  return emu::value_of_lane(mask, value, from, true, {file, line});
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32,
                 const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const bool is_in_range = emu::lane_in(width) >= distance;
  return emu::value_of_lane(mask, value, emu::self->lane - distance, is_in_range, {file, line});
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32,
                   const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const bool is_in_range = emu::lane_in(width) + distance < static_cast<unsigned>(width);
  return emu::value_of_lane(mask, value, emu::self->lane + distance, is_in_range, {file, line});
}
/// Lanes of segments before the own one can be read, of segments behind it not.
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance, int width = 32, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  const unsigned from = emu::self->lane ^ static_cast<unsigned>(distance);
  const bool is_in_range = from < emu::begin_of(width) + static_cast<unsigned>(width);
  return emu::value_of_lane(mask, value, from, is_in_range, {file, line});
}

inline unsigned __ballot_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
  return emu::ballot(mask, predicate, {file, line});
}
inline int __any_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(),
                      int line = __builtin_LINE()) {
  return __ballot_sync(mask, predicate, file, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(),
                      int line = __builtin_LINE()) {
  return __ballot_sync(mask, predicate == 0, file, line) == 0;
}
