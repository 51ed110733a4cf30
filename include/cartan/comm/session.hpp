// MPI from start to end: who this rank is, its communicators, and how the job ends when something fails.
#pragma once

#include <memory>
#include <string>

#include "cartan/comm/communicator.hpp"

namespace cartan::comm {

/// One in a process. MPI_Init_thread when made, MPI_Finalize when destroyed in good order (not while
/// unwinding); an MPI that runs already is used and left running.
///
/// Environment: CARTAN_COMM = auto (ranks of one node exchange through shared memory, and groups that span
/// nodes sum inside each first), messages (as between nodes that hold one rank each), or nodes:K (auto, but
/// each K neighbouring ranks of the world count as a node: for tests on one machine). Where the ranks that
/// the launcher announces for this node, times OMP_NUM_THREADS, exceed the CPUs,
/// OMPI_MCA_mpi_yield_when_idle=1 is set before MPI starts, unless it is set already.
class Session {
 public:
  /// Throws EnvironmentError: MPI gives less than MPI_THREAD_SERIALIZED (which is enough where nothing
  /// overlaps, see thread_multiple), or a launcher started singletons (SLURM_STEP_NUM_TASKS or PMI_SIZE
  /// larger than the MPI world). Throws ConfigError for another CARTAN_COMM.
  Session(int& argc, char**& argv);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  int rank() const;
  int world_size() const;
  int node_rank() const;  ///< among the ranks of this host
  int ranks_on_node() const;
  std::string host() const;
  /// Threads that this rank may use without crowding the others: the CPUs of its affinity mask where the
  /// launcher bound the ranks, else its share of the node's.
  int threads_of_rank() const;
  /// Whether MPI may be called from several threads at once (communication on a stream of its own,
  /// asynchronous saves).
  bool thread_multiple() const;

  /// Ends the whole job with `code` at once; does not return. For the error path.
  [[noreturn]] static void abort(int code);
  /// The MPI library's name and version, without initialising it.
  static std::string library_version();

 private:
  friend class Mesh;  // which works as the environment says
  struct State;
  std::unique_ptr<State> state_;
};

/// The MPI communicator behind `comm` (an MPI_Comm stored as a pointer-sized integer: rooms other than comm
/// and store do not see MPI types). Throws InternalError if it is not an MPI one.
std::uintptr_t native_handle(const Communicator& comm);

}  // namespace cartan::comm
