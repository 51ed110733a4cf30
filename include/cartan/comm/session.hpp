// MPI from start to end: who this rank is, its communicators, and how the job ends when something fails.
#pragma once

#include <memory>
#include <string>

#include "cartan/comm/communicator.hpp"
#include "cartan/comm/mesh.hpp"

namespace cartan::comm {

/// One in a process. MPI_Init_thread when made, MPI_Finalize when destroyed in good order (not while
/// unwinding).
class Session {
 public:
  /// Throws EnvironmentError: MPI gives less than MPI_THREAD_MULTIPLE (SERIALIZED is enough where nothing
  /// overlaps), or a launcher started singletons (SLURM_NTASKS or PMI_SIZE larger than the MPI world).
  Session(int& argc, char**& argv);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  int rank() const;
  int world_size() const;
  int node_rank() const;  ///< among the ranks of this host
  int ranks_on_node() const;
  std::string host() const;
  /// Whether MPI may be called from several threads at once (communication on a stream of its own,
  /// asynchronous saves).
  bool thread_multiple() const;

  /// Ends the whole job with `code` at once; does not return. For the error path.
  [[noreturn]] static void abort(int code);
  /// The MPI library's name and version, without initialising it.
  static std::string library_version();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The communicators of one rank. Made by MPI_Cart_create over (pp, dp, cp, tp) and MPI_Cart_sub. Collective.
class Mesh {
 public:
  Mesh(Session& session, const MeshShape& shape);
  ~Mesh();

  const MeshShape& shape() const;
  const MeshCoordinate& coordinate() const;
  Communicator& world();
  Communicator& axis(Axis axis);
  /// The dp x cp plane over which gradients are reduced and ZeRO shards.
  Communicator& data_plane();
  /// A further communicator over the whole mesh, for work that runs beside the step (asynchronous saves).
  /// Collective.
  std::unique_ptr<Communicator> duplicate_world(std::string name);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The MPI communicator behind `comm` (an MPI_Comm stored as a pointer-sized integer: rooms other than comm
/// and store do not see MPI types). Throws InternalError if it is not an MPI one.
std::uintptr_t native_handle(const Communicator& comm);

}  // namespace cartan::comm
