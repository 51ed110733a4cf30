// What the ranks of a communicator share: a file in memory that each of them maps. It holds who they are, the
// collective call that each has posted, and one mailbox for each pair of them. Data itself is read from the
// memory of the peers' devices, which is such a file too.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstdint>

namespace emu::nccl {

inline constexpr int kMaxRanks = 64;

enum class Verb : int { all_reduce, reduce, broadcast, all_gather, reduce_scatter };

/// A collective as one rank called it. All but the source has to be the same on all ranks.
struct Call {
  Verb verb;
  ncclDataType_t type;
  ncclRedOp_t reduction;
  int root;
  std::uint64_t count;
  std::uint64_t source;  ///< where the rank's input begins in its heap
};

struct Member {
  std::atomic<int> pid;
  int heap_fd;
  /// Number of the collective that is posted, and of the last one whose inputs the rank has read.
  std::atomic<std::uint64_t> posted, read;
  Call call;
  /// Number of the split that the rank has called, and of the one whose segment it has made for its colour.
  /// What it said lies in two slots in turn: a rank may call the next one while another still reads.
  std::atomic<std::uint64_t> split, split_made;
  struct Split {
    int color, key, fd;
  } splits[2];
};

/// From one rank to another. Messages have numbers; the next is posted when the last was taken.
struct Mailbox {
  std::atomic<std::uint64_t> posted, taken;
  std::uint64_t source, count;
  ncclDataType_t type;
  std::atomic<bool> differs;  ///< from what the receiver expected
};

struct Segment {
  std::atomic<int> joined;
  Member members[kMaxRanks];
  Mailbox mail[kMaxRanks][kMaxRanks];  ///< [from][to]
};

/// Which process holds a file open under which number: how others find it.
struct FileAddress {
  int pid, fd;
};

/// A new segment of this process; throws nothing, fd is -1 on failure.
FileAddress make_segment();
/// Null if the process is gone.
Segment* map_segment(const FileAddress& address);
void unmap_segment(Segment* segment);
/// The memory of a peer's device; null if the process is gone.
unsigned char* map_heap(const FileAddress& address);

}  // namespace emu::nccl
