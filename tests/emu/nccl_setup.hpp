// How the ranks of a communicator find each other, at its beginning and in a split. All of it is a step at a
// time: a communicator that does not block takes one whenever its state is asked for.
#pragma once

#include <nccl.h>

#include <cstdint>

#include "nccl_comm.hpp"

namespace emu::nccl {

/// Joins the others of a communicator whose segment is known. Like the next one: ncclInProgress until it is
/// done.
ncclResult_t join(Communicator& communicator, const FileAddress& address);

/// One step of a split, in the child's place: all ranks have called it, the first of each colour makes the
/// segment, the others join it. Without a child: until all have called it.
ncclResult_t advance_split(Communicator& parent, Communicator* child, std::uint64_t number, int color);

/// Says what this rank wants of the parent's next split; the split's number.
std::uint64_t announce_split(Communicator& parent, int color, int key);

/// Takes the setup one step further.
ncclResult_t advance_setup(Communicator& communicator);

/// Waits for a blocking communicator: until it is there, or not all ranks came.
ncclResult_t set_up(const char* call, Communicator& communicator);

}  // namespace emu::nccl
