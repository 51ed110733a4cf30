// The communicators of a mesh on GPUs, for those who know nothing of CUDA. Builds without it have the same
// functions, which refuse.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "comm/mpi/mpi_group.hpp"
#include "comm/reduction_room.hpp"

namespace cartan::comm {

/// Sizes and times are parameters so that tests reach every path.
struct NcclOptions {
  std::size_t room_bytes = ReductionRoom::kBytes;  ///< 0 where no group has several ranks
  double connect_timeout_s = 120;
  double call_timeout_s = 0;    ///< from when the GPU begins a call to its end; 0: as long as it takes
  double watch_interval_s = 0;  ///< a thread polls so often, and aborts all where it finds a failure; 0: none
  double grace_s = 10;          ///< after which it ends a process whose main thread did not
  std::function<void(std::exception_ptr)> give_up{};  ///< how; none: MPI_Abort
};

/// What a communicator is for; where it has several ranks, this much of it is connected when it is made.
enum class NcclUse {
  on_demand,    ///< connected by the first call of the data plane
  collectives,  ///< and messages that need not run beside each other
  ring,         ///< messages to the next and from the previous rank, each beside the other and all else
  all,
};

/// What the communicators of a mesh share: the room for their reductions, and who watches over them.
class NcclGroups {
 public:
  virtual ~NcclGroups() = default;
  /// Takes over `comm`. ring: messages go `step` (1 or -1) ranks further. Collective over `comm`; so is its
  /// end. The groups outlive it.
  virtual std::unique_ptr<Communicator> make(CommHandle comm, const std::string& name,
                                             const MpiOptions& options, NcclUse use, int step = 1) = 0;
  /// Throws where NCCL noticed a failure on a communicator, or a call takes too long: names it, the call and
  /// the rank. Any thread may ask.
  virtual void poll() = 0;
  /// Ends all that is under way on this rank's GPU; no call succeeds afterwards. Any thread may call it.
  virtual void abort() noexcept = 0;
  /// Brings the records of calls up to date.
  virtual void read_clocks() = 0;
};

std::unique_ptr<NcclGroups> make_nccl_groups(const NcclOptions& options);

}  // namespace cartan::comm
