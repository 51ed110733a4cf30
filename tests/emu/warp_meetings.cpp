#include "warp_meetings.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "checker.hpp"
#include "fibers.hpp"
#include "settings.hpp"

namespace emu {

void WarpMeetings::reset() {
  for (std::vector<Rendezvous*>& open : open_) open.clear();
  spare_.clear();
  for (Rendezvous& rendezvous : all_) spare_.push_back(&rendezvous);
}

Rendezvous& WarpMeetings::find_or_open(unsigned mask, Sync sync, Where where) {
  std::vector<Rendezvous*>& open = open_[self->warp];
  for (Rendezvous* const found : open) {
    if (found->mask != mask) continue;
    if (found->sync != sync)
      fail(where, ("lanes of one mask meet in different operations: others wait in " +
                   std::string(name_of(found->sync)) + " at line " + std::to_string(found->where.line))
                      .c_str());
    if (sync != Sync::syncwarp && found->where.line != where.line)
      fail(where, ("lanes of one mask meet at different places: others wait at line " +
                   std::to_string(found->where.line))
                      .c_str());
    return *found;
  }
  if (spare_.empty()) spare_.push_back(&all_.emplace_back());
  Rendezvous* const opened = spare_.back();
  spare_.pop_back();
  opened->mask = mask;
  opened->arrived = 0;
  opened->sync = sync;
  opened->where = where;
  open.push_back(opened);
  return *opened;
}

Rendezvous& WarpMeetings::meet(Block& block, unsigned mask, Sync sync, const void* record, std::size_t bytes,
                               Where where) {
  if ((mask >> self->lane & 1) == 0) fail(where, "the calling lane is not in its own mask");
  Rendezvous& rendezvous = find_or_open(mask, sync, where);
  if (bytes > 0) std::memcpy(rendezvous.records[self->lane], record, bytes);
  rendezvous.arrived |= 1u << self->lane;
  if (rendezvous.arrived == (mask & block.live_lanes(self->warp)))
    release(block, self->warp, rendezvous);
  else
    block.wait(sync, where, &rendezvous);
  return rendezvous;
}

void WarpMeetings::release(Block& block, unsigned warp, Rendezvous& rendezvous) {
  std::erase(open_[warp], &rendezvous);
  rendezvous.readers = static_cast<unsigned>(std::popcount(rendezvous.arrived));
  unsigned epoch = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    if (rendezvous.arrived >> lane & 1) epoch = std::max(epoch, block.fiber(warp * 32 + lane).warp_epoch);
  for (unsigned i = 0; i < 32; ++i) {
    const unsigned lane = policy.order == Order::reverse ? 31 - i : i;
    if ((rendezvous.arrived >> lane & 1) == 0) continue;
    Fiber& fiber = block.fiber(warp * 32 + lane);
    // Only __syncwarp orders memory; shuffles and votes do not.
    if (rendezvous.sync == Sync::syncwarp) fiber.warp_epoch = epoch + 1;
    if (fiber.state == Fiber::State::waiting) block.make_ready(warp * 32 + lane);
  }
}

void WarpMeetings::leave(Rendezvous& rendezvous) {
  if (--rendezvous.readers == 0) spare_.push_back(&rendezvous);
}

void WarpMeetings::thread_ended(Block& block, unsigned warp) {
  if (open_[warp].empty()) return;
  const std::vector<Rendezvous*> open = open_[warp];
  for (Rendezvous* const rendezvous : open)
    if (rendezvous->arrived == (rendezvous->mask & block.live_lanes(warp))) release(block, warp, *rendezvous);
}

Meeting::Meeting(unsigned mask, Sync sync, const void* record, std::size_t bytes, Where where)
    : rendezvous_(this_block().meetings().meet(this_block(), mask, sync, record, bytes, where)) {}

Meeting::~Meeting() { this_block().meetings().leave(rendezvous_); }

void sync_warp(unsigned mask, Where where) { const Meeting meeting(mask, Sync::syncwarp, nullptr, 0, where); }

void shuffle(unsigned mask, void* value, unsigned bytes, unsigned source, bool is_in_range, Where where) {
  const Meeting meeting(mask, Sync::shuffle, value, bytes, where);
  if (!is_in_range) return;
  if (!meeting.is_here(source)) fail(where, "shuffle reads a lane that does not take part");
  std::memcpy(value, meeting.record(source), bytes);
}

unsigned ballot(unsigned mask, int predicate, Where where) {
  const Meeting meeting(mask, Sync::ballot, &predicate, sizeof predicate, where);
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    if (meeting.is_here(lane) && meeting.of<int>(lane) != 0) votes |= 1u << lane;
  return votes;
}

}  // namespace emu
