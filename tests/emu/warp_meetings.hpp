// Rendezvous of the lanes of a warp: __syncwarp, shuffles, votes and matrix instructions. Each lane leaves a
// record, and when all lanes of the mask are there each reads what it needs of the others'.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <deque>
#include <vector>

#include "thread.hpp"

namespace emu {

class Block;

struct Rendezvous {
  static constexpr std::size_t kRecordBytes = 64;

  unsigned mask = 0;
  unsigned arrived = 0;
  unsigned readers = 0;  ///< that have not read yet
  Sync sync{};
  Where where{};
  alignas(16) unsigned char records[32][kRecordBytes];
};

class WarpMeetings {
 public:
  void reset();
  /// Waits for the other lanes of `mask`.
  Rendezvous& meet(Block& block, unsigned mask, Sync sync, const void* record, std::size_t bytes,
                   Where where);
  /// The running thread has read what it needs.
  void leave(Rendezvous& rendezvous);
  /// The other lanes may have waited for it only.
  void thread_ended(Block& block, unsigned warp);

 private:
  Rendezvous& find_or_open(unsigned mask, Sync sync, Where where);
  void release(Block& block, unsigned warp, Rendezvous& rendezvous);

  std::array<std::vector<Rendezvous*>, 32> open_;  ///< of each warp
  std::vector<Rendezvous*> spare_;
  std::deque<Rendezvous> all_;
};

/// The running thread's part in a rendezvous.
class Meeting {
 public:
  Meeting(unsigned mask, Sync sync, const void* record, std::size_t bytes, Where where);
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  ~Meeting();

  bool is_here(unsigned lane) const { return lane < 32 && (rendezvous_.arrived >> lane & 1) != 0; }
  const unsigned char* record(unsigned lane) const { return rendezvous_.records[lane]; }
  template <class Record>
  const Record& of(unsigned lane) const {
    return *reinterpret_cast<const Record*>(rendezvous_.records[lane]);
  }

 private:
  Rendezvous& rendezvous_;
};

}  // namespace emu
