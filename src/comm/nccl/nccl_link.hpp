// One NCCL communicator: how it comes to be, by an id that MPI carries; how calls reach it; how it ends, in
// good order or not. It never blocks inside of NCCL, so every wait has an end and can be given up.
#pragma once

#include <nccl.h>

#include <mutex>
#include <string>

#include "comm/mpi/mpi_group.hpp"
#include "comm/nccl/check.hpp"
#include "comm/nccl/first_failure.hpp"

namespace cartan::comm {

/// A call as errors name it.
struct CallName {
  std::string_view verb;
  std::uint64_t sequence = 0;
};

struct LinkOptions {
  double connect_timeout_s = 120;
  /// Thread blocks that a call may occupy while it waits for its peers; 0: as many as NCCL likes.
  int most_blocks = 0;
  std::shared_ptr<const FirstFailure> failure{};  ///< of all communicators; ends what waits here
};

class NcclLink {
 public:
  /// The ranks of `group`, each on the GPU that is current in its calling thread. Collective over the group.
  /// Where a rank fails, or does not come in time, all throw, and say which.
  NcclLink(MpiGroup& group, const LinkOptions& options);
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;
  /// Ends what is under way, with the peers; at once while an exception unwinds.
  ~NcclLink();

  /// Runs calls(ncclComm_t), whose result is NCCL's, as one group, and returns when all of it is enqueued.
  template <class Calls>
  void run(const CallName& call, Calls&& calls) {
    {
      const std::lock_guard lock(mutex_);
      require_open(call);
      check(ncclGroupStart(), call);
      ncclResult_t result = calls(handle_);
      const ncclResult_t ended = ncclGroupEnd();
      if (is_fine(result)) result = ended;
      if (result != ncclInProgress) check(result, call);
    }
    settle(call);
  }

  /// Registers a GPU's memory for exchange without copies; null where NCCL does not want to.
  void* register_memory(void* data, std::size_t size_bytes);
  void deregister(void* registration) noexcept;

  /// What NCCL noticed by itself; ncclSuccess if nothing. Any thread may ask.
  ncclResult_t state();
  /// Throws what a result says about a call, unless that it succeeded.
  void check(ncclResult_t result, const CallName& call) const;
  /// Whatever is under way ends now, here; later calls throw. Any thread may call it.
  void abort() noexcept;

 private:
  void connect(const ncclUniqueId& id, MpiGroup& group, const LinkOptions& options);
  void require_open(const CallName& call) const;
  /// Waits until NCCL has done what it was told.
  void settle(const CallName& call);

  std::string where_;  ///< "tp[pp=0,dp=1,cp=0], rank 1 of 4"
  std::shared_ptr<const FirstFailure> failure_;
  std::mutex mutex_;
  ncclComm_t handle_ = nullptr;
  bool is_aborted_ = false;
};

}  // namespace cartan::comm
