// When two accesses to the same bytes race.
//
// Inside an operation, two threads race unless a barrier lies between them: __syncthreads for threads of a
// block,
// __syncwarp for lanes of a warp, nothing for blocks of a grid; atomic accesses do not race with each other.
// Accesses of two operations race unless one operation happens before the other (clocks.hpp).
#pragma once

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

/// Two accesses of one operation, of which one at least writes.
inline bool is_race_inside(const Accessor& before, const Accessor& now, bool is_shared) {
  const bool are_atomic = before.is_atomic && now.is_atomic;
  if (before.block != now.block) return !is_shared && !are_atomic;
  if (before.warp == now.warp && before.lane == now.lane) return false;
  if (before.epoch < now.epoch || are_atomic) return false;
  return before.warp != now.warp || before.warp_epoch >= now.warp_epoch;
}

inline void note_read(Cell& cell, const Accessor& now, std::uint32_t operation, bool is_shared) {
  if (cell.read_operation != operation) {
    if (cell.read_operation != 0 && !is_shared && !happens_before(cell.read_operation, operation))
      cell.earlier_read_operation = cell.read_operation;
    cell.read_operation = operation;
    cell.read = now;
    return;
  }
  Accessor& known = cell.read;
  if (known.block != now.block) {
    known.block = Accessor::kManyBlocks;
  } else if (known.epoch != now.epoch) {
    known = now;  // whoever races with the earlier ones races with a barrier's other side: not
  } else if (known.warp != now.warp) {
    known.warp = known.lane = Accessor::kMany;
  } else {
    if (known.lane != now.lane) known.lane = Accessor::kMany;
    if (known.warp_epoch < now.warp_epoch) known.warp_epoch = now.warp_epoch;
  }
}

/// Remembers an access; what it races with, if anything.
inline Race access_cell(Cell& cell, const Accessor& now, bool writes, std::uint32_t operation,
                        bool is_shared) {
  Race race;
  const auto races_with = [&](std::uint32_t other, const Accessor& before) {
    if (other == 0) return false;
    if (other == operation) return is_race_inside(before, now, is_shared);
    return !is_shared && !happens_before(other, operation);
  };
  if (races_with(cell.write_operation, cell.write))
    race = {writes ? Race::Kind::write_after_write : Race::Kind::read_after_write, cell.write_operation};
  if (!writes) {
    note_read(cell, now, operation, is_shared);
    return race;
  }
  if (race.kind == Race::Kind::none) {
    if (races_with(cell.read_operation, cell.read))
      race = {Race::Kind::write_after_read, cell.read_operation};
    else if (!is_shared && cell.earlier_read_operation != operation &&
             !happens_before(cell.earlier_read_operation, operation))
      race = {Race::Kind::write_after_read, cell.earlier_read_operation};
  }
  cell.write_operation = operation;
  cell.write = now;
  return race;
}

}  // namespace emu
