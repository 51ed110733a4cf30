// When two accesses to the same bytes race.
//
// Inside an operation, two threads race unless a barrier lies between them: __syncthreads for threads of a
// block,
// __syncwarp for lanes of a warp, nothing for blocks of a grid; atomic accesses do not race with each other.
// Accesses of two operations race unless one operation happens before the other (clocks.hpp).
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "clocks.hpp"

namespace emu {

/// Who accessed: a thread, and how many barriers it had passed. Copies and their like are thread 0 of block
/// 0.
struct Accessor {
  static constexpr unsigned kManyBlocks = (1u << 21) - 1, kMany = 63;

  std::uint64_t block : 21;
  std::uint64_t warp : 6, lane : 6;
  std::uint64_t epoch : 17, warp_epoch : 13;
  std::uint64_t is_atomic : 1;
};
static_assert(sizeof(Accessor) == 8);

inline bool is_same(const Accessor& a, const Accessor& b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

/// What is remembered of two bytes of memory. Operation 0 is none.
struct Cell {
  std::uint32_t write_operation = 0;
  std::uint32_t read_operation = 0;
  std::uint32_t earlier_read_operation = 0;  ///< that is not ordered before the last one
  std::uint32_t generation = 0;              ///< shared memory: of which block this is
  Accessor write{}, read{};
};
static_assert(sizeof(Cell) == 32);

struct Race {
  enum class Kind : unsigned char { none, write_after_write, read_after_write, write_after_read };

  Kind kind = Kind::none;
  std::uint32_t other = 0;  ///< the operation of the access before
};

/// happens_before, for the many neighbouring bytes that ask the same.
inline bool is_ordered(std::uint32_t before, std::uint32_t now) {
  struct Answer {
    std::uint32_t before = 0, now = 0;  // positive ones only; operation 0 is before every other
  };
  static constinit std::array<Answer, 64> answers{};
  Answer& near = answers[before % answers.size()];
  if (near.before == before && near.now == now) return true;
  if (!happens_before(before, now)) return false;
  near = {before, now};
  return true;
}

/// Two accesses of one operation, of which one at least writes.
inline bool is_race_inside(const Accessor& before, const Accessor& now, bool is_shared) {
  const bool are_atomic = before.is_atomic && now.is_atomic;
  if (before.block != now.block) return !is_shared && !are_atomic;
  if (before.warp == now.warp && before.lane == now.lane) return false;
  if (before.epoch < now.epoch || are_atomic) return false;
  return before.warp != now.warp || before.warp_epoch >= now.warp_epoch;
}

/// Remembers a read, as one of several threads where others have read before.
template <bool kIsShared>
void note_read(Cell& cell, const Accessor& now, std::uint32_t operation) {
  if (cell.read_operation != operation) {
    if (!kIsShared && cell.read_operation != 0 && !is_ordered(cell.read_operation, operation))
      cell.earlier_read_operation = cell.read_operation;
    cell.read_operation = operation;
    cell.read = now;
    return;
  }
  Accessor& known = cell.read;
  if (known.block != now.block) {
    known.block = Accessor::kManyBlocks;
  } else if (known.epoch != now.epoch) {
    known = now;  // a barrier orders the earlier ones before whoever comes from now on
  } else if (known.warp != now.warp) {
    known.warp = known.lane = Accessor::kMany;
  } else {
    if (known.lane != now.lane) known.lane = Accessor::kMany;
    if (known.warp_epoch < now.warp_epoch) known.warp_epoch = now.warp_epoch;
  }
}

/// Whether an access races with one before it.
template <bool kIsShared>
bool races_with(std::uint32_t other, const Accessor& before, const Accessor& now, std::uint32_t operation) {
  if (other == 0) return false;
  if (other == operation) return is_race_inside(before, now, kIsShared);
  return !kIsShared && !is_ordered(other, operation);
}

/// Remembers a read; what it races with.
template <bool kIsShared>
Race read_cell(Cell& cell, const Accessor& now, std::uint32_t operation) {
  // A thread that repeats a read learns nothing new: a write in between was compared with the first one.
  if (cell.read_operation == operation && is_same(cell.read, now)) return {};
  const bool is_race = races_with<kIsShared>(cell.write_operation, cell.write, now, operation);
  note_read<kIsShared>(cell, now, operation);
  return is_race ? Race{Race::Kind::read_after_write, cell.write_operation} : Race{};
}

/// Remembers a write; what it races with.
template <bool kIsShared>
Race write_cell(Cell& cell, const Accessor& now, std::uint32_t operation) {
  Race race;
  const std::uint32_t earlier = cell.earlier_read_operation;
  if (races_with<kIsShared>(cell.write_operation, cell.write, now, operation))
    race = {Race::Kind::write_after_write, cell.write_operation};
  else if (races_with<kIsShared>(cell.read_operation, cell.read, now, operation))
    race = {Race::Kind::write_after_read, cell.read_operation};
  else if (!kIsShared && earlier != operation && !is_ordered(earlier, operation))
    race = {Race::Kind::write_after_read, earlier};
  cell.write_operation = operation;
  cell.write = now;
  return race;
}

}  // namespace emu
