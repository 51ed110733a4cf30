#include "checker.hpp"

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <set>
#include <string>
#include <utility>

#include "access_patterns.hpp"
#include "device.h"
#include "fibers.hpp"
#include "findings.hpp"
#include "grid.hpp"
#include "memory.hpp"
#include "pending_sources.hpp"
#include "program_image.hpp"
#include "settings.hpp"
#include "shadow_memory.hpp"
#include "symbols.hpp"

namespace emu {
namespace {

enum class Problem : unsigned char {
  race_of_threads,
  race_of_operations,
  out_of_bounds,
  never_written,
  misaligned,
  host_memory
};

// Never destroyed: the progress thread may outlive main.
std::set<std::pair<const void*, Problem>>& reported = *new std::set<std::pair<const void*, Problem>>;

std::uint32_t shared_generation = 0;

/// Reports `text()` once for a place.
template <class Text>
void find(Problem problem, const void* address, const void* code, const Text& text) {
  if (!reported.emplace(code, problem).second) return;
  char where[64];
  std::snprintf(where, sizeof where, " at 0x%" PRIxPTR, reinterpret_cast<std::uintptr_t>(address));
  std::string finding = std::string(text()) + where;
  if (self != nullptr)
    finding += ", block " + std::to_string(current_block) + " thread " + std::to_string(self->rank) + " in " +
               op_name(running_op) + ", " + source_line(code);
  report(std::move(finding));
}

std::string name_of(Race::Kind kind) {
  switch (kind) {
    case Race::Kind::write_after_write:
      return "write after write";
    case Race::Kind::read_after_write:
      return "read after write";
    case Race::Kind::write_after_read:
      return "write after read";
    case Race::Kind::none:
      break;
  }
  return "none";
}

void find_race(const Race& race, const void* address, const void* code, bool is_shared) {
  if (race.other == running_op) {
    find(Problem::race_of_threads, address, code, [&] {
      return "race: " + name_of(race.kind) + (is_shared ? " in shared memory" : " in global memory");
    });
  } else {
    find(Problem::race_of_operations, address, code, [&] {
      return "race between streams: " + name_of(race.kind) + " by <" + op_name(race.other) + "> in <" +
             op_name(running_op) + ">";
    });
  }
}

Accessor accessor_now(AccessKind kind) {
  Accessor now{};
  now.block = current_block;
  now.warp = self->warp;
  now.lane = self->lane;
  now.epoch = self->block_epoch;
  now.warp_epoch = self->warp_epoch;
  now.is_atomic = kind == AccessKind::atomic;
  return now;
}

/// The number of cells that the bytes touch.
std::size_t cells_in(const void* address, std::size_t bytes) {
  return (reinterpret_cast<std::uintptr_t>(address) % 2 + bytes + 1) / 2;
}

void check_heap(const void* address, std::size_t bytes, bool writes, const Accessor& now, const void* code) {
  const Allocation* const allocation = allocation_of(address, bytes);
  if (allocation == nullptr) {
    find(Problem::out_of_bounds, address, code,
         [&] { return std::string(writes ? "write" : "read") + " outside of any allocation"; });
    return;
  }
  Cell* const cells = cell_of(address);
  const std::size_t count = cells_in(address, bytes);
  for (std::size_t i = 0; i < count; ++i) {
    Cell& cell = cells[i];
    // What the host writes to pinned memory is not seen.
    if (!writes && cell.write_operation == 0 && !allocation->is_pinned)
      find(Problem::never_written, address, code,
           [] { return "read of device memory that was never written"; });
    const Race race =
        writes ? write_cell<false>(cell, now, running_op) : read_cell<false>(cell, now, running_op);
    if (race.kind != Race::Kind::none) find_race(race, address, code, false);
  }
}

void check_shared(Cell* cells, const void* address, std::size_t bytes, AccessKind kind, const void* code) {
  const Accessor now = accessor_now(kind);
  const bool is_write = writes(kind);
  const std::size_t count = cells_in(address, bytes);
  for (std::size_t i = 0; i < count; ++i) {
    Cell& cell = cells[i];
    if (cell.generation != shared_generation) {
      cell = Cell{};
      cell.generation = shared_generation;
    }
    if (!is_write && cell.write_operation == 0)
      find(Problem::never_written, address, code,
           [] { return "read of shared memory that was never written"; });
    const Race race =
        is_write ? write_cell<true>(cell, now, running_op) : read_cell<true>(cell, now, running_op);
    if (race.kind != Race::Kind::none) find_race(race, address, code, true);
  }
}

void check_alignment(const void* address, std::size_t bytes, AccessKind kind, const void* code) {
  const bool may_be_unaligned = kind == AccessKind::unaligned_load || kind == AccessKind::unaligned_store;
  const bool is_power_of_two = (bytes & (bytes - 1)) == 0;
  if (may_be_unaligned || !is_power_of_two || (reinterpret_cast<std::uintptr_t>(address) & (bytes - 1)) == 0)
    return;
  find(Problem::misaligned, address, code,
       [&] { return "misaligned access of " + std::to_string(bytes) + " bytes"; });
}

/// threadIdx and its like are thread_local as shared memory is.
bool is_own_variable(const void* address) {
  const auto is_in = [&](const auto& variable) { return address >= &variable && address < &variable + 1; };
  return is_in(threadIdx) || is_in(blockIdx) || is_in(blockDim) || is_in(gridDim) || is_in(self);
}

/// Static shared memory is among them.
const AddressRange& shared_variables() {
  static thread_local const AddressRange variables = thread_variables();
  return variables;
}

enum class Space : unsigned char { global, dynamic_shared, static_shared, own, host };

Space space_of(const void* address) {
  if (address >= heap.lo && address < heap.hi) return Space::global;
  const Block& block = this_block();
  if (block.is_own_memory(address)) return Space::own;
  const auto* const shared = static_cast<const unsigned char*>(block.shared());
  if (address >= shared && address < shared + Block::kMostSharedBytes) return Space::dynamic_shared;
  if (shared_variables().contains(address))
    return is_own_variable(address) ? Space::own : Space::static_shared;
  return program_image().image.contains(address) ? Space::own : Space::host;
}

void check(Space space, const void* address, std::size_t bytes, AccessKind kind, const void* code) {
  switch (space) {
    case Space::global:
      check_heap(address, bytes, writes(kind), accessor_now(kind), code);
      break;
    case Space::dynamic_shared: {
      const Block& block = this_block();
      const auto offset = static_cast<std::size_t>(static_cast<const unsigned char*>(address) -
                                                   static_cast<unsigned char*>(block.shared()));
      if (offset + bytes > block.shared_bytes()) {
        find(Problem::out_of_bounds, address, code,
             [] { return "access past the dynamic shared memory of the launch"; });
        return;
      }
      check_shared(&dynamic_shared_cell(offset), address, bytes, kind, code);
      break;
    }
    case Space::static_shared: {
      const auto offset =
          static_cast<std::size_t>(static_cast<const unsigned char*>(address) - shared_variables().begin);
      check_shared(&static_shared_cell(offset), address, bytes, kind, code);
      break;
    }
    case Space::own:  // stacks, parameters, constants
      return;
    case Space::host:
      find(Problem::host_memory, address, code, [] { return "device code touches host memory"; });
      return;
  }
  check_alignment(address, bytes, kind, code);
}

}  // namespace

void check_watched_access(const void* address, std::size_t bytes, AccessKind kind, const void* code) {
  const Space space = space_of(address);
  if (config.profile && space != Space::own && space != Space::host && kind != AccessKind::atomic)
    note_pattern(address, bytes, writes(kind), space == Space::global, code);
  if (config.race) check(space, address, bytes, kind, code);
}

void check_repeated_access(const void* address, std::size_t bytes, AccessKind kind, const void* code) {
  if (self != nullptr && config.race) check(space_of(address), address, bytes, kind, code);
}

void touch(const void* data, std::size_t bytes, bool writes) {
  if (writes) note_rewritten(data, bytes);
  if (config.race && bytes > 0) check_heap(data, bytes, writes, Accessor{}, nullptr);
}

void forget_shared_memory() { ++shared_generation; }
void forget_reported() { reported.clear(); }

void note_atomic(const void* address, unsigned bytes) {
  check_access(address, bytes, AccessKind::atomic, __builtin_return_address(0));
}

}  // namespace emu
