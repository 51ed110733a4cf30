#include "nccl_setup.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "runtime.h"

namespace emu::nccl {
namespace {

Member::Split& split_of(Member& member, std::uint64_t number) { return member.splits[number % 2]; }

/// The ranks of a colour in the order of their keys.
std::vector<int> ranks_of_color(const Communicator& parent, std::uint64_t number, int color) {
  std::vector<int> ranks;
  Member* const members = parent.segment->members;
  for (int r = 0; r < parent.size; ++r)
    if (split_of(members[r], number).color == color) ranks.push_back(r);
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return split_of(members[a], number).key < split_of(members[b], number).key;
  });
  return ranks;
}

/// Of a blocking communicator: until it is there, or nothing moves any more.
ncclResult_t wait_for_setup(const char* call, Communicator& communicator) {
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    {
      const std::lock_guard lock(big_lock());
      const ncclResult_t result = advance_setup(communicator);
      if (result != ncclInProgress) return result;
    }
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    if (waited.count() > config.timeout_s)
      return misuse(std::string(call) + ": not all ranks of the communicator came", ncclSystemError);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

}  // namespace

ncclResult_t join(Communicator& communicator, const FileAddress& address) {
  if (communicator.segment == nullptr) {
    communicator.segment = map_segment(address);
    if (communicator.segment == nullptr)
      return misuse("the process that made the id of a communicator is gone", ncclSystemError);
    if (address.pid == getpid()) communicator.own_segment = address;
    Member& me = communicator.segment->members[communicator.rank];
    if (me.pid.load() != 0)
      return misuse("two processes join a communicator as rank " + std::to_string(communicator.rank));
    me.heap_fd = heap_fd;
    me.pid.store(getpid());
    ++communicator.segment->joined;
  }
  return communicator.segment->joined.load() < communicator.size ? ncclInProgress : ncclSuccess;
}

ncclResult_t advance_split(Communicator& parent, Communicator* child, std::uint64_t number, int color) {
  Member* const members = parent.segment->members;
  for (int r = 0; r < parent.size; ++r)
    if (members[r].split.load() < number) return ncclInProgress;
  if (child == nullptr) return ncclSuccess;
  const std::vector<int> ranks = ranks_of_color(parent, number, color);
  Member& leader = members[ranks.front()];
  if (child->segment == nullptr) {
    child->size = static_cast<int>(ranks.size());
    child->rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), parent.rank) - ranks.begin());
    child->sent.assign(ranks.size(), 0);
    child->received.assign(ranks.size(), 0);
    if (child->rank == 0 && leader.split_made.load() < number) {
      split_of(leader, number).fd = make_segment().fd;
      leader.split_made.store(number);
    }
    if (leader.split_made.load() < number) return ncclInProgress;
  }
  return join(*child, {leader.pid.load(), split_of(leader, number).fd});
}

std::uint64_t announce_split(Communicator& parent, int color, int key) {
  Member& me = parent.segment->members[parent.rank];
  const std::uint64_t number = ++parent.splits;
  split_of(me, number).color = color;
  split_of(me, number).key = key;
  me.split.store(number);
  return number;
}

ncclResult_t advance_setup(Communicator& communicator) {
  if (!communicator.setup) return communicator.error;
  const ncclResult_t result = communicator.setup();
  if (result == ncclInProgress) return result;
  communicator.setup = nullptr;
  if (result != ncclSuccess) communicator.error = result;
  return communicator.error;
}

ncclResult_t set_up(const char* call, Communicator& communicator) {
  return communicator.is_blocking ? wait_for_setup(call, communicator) : ncclInProgress;
}

}  // namespace emu::nccl
