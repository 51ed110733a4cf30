// The communicators of one rank of a mesh.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cartan/comm/mesh.hpp"
#include "cartan/comm/nccl_environment.hpp"
#include "cartan/comm/session.hpp"

namespace cartan::comm {

/// What a rank did in the data plane of some communicators.
struct Traffic {
  std::uint64_t bytes_sent = 0;
  double seconds = 0;
};

struct MeshOptions {
  // Of a mesh on GPUs.
  MeshWatch watch{};
  NcclConfig nccl{};
};

/// Over MPI: made by MPI_Cart_create over (pp, dp, cp, tp) and MPI_Cart_sub; everything that makes or
/// destroys groups is then collective over those it is made from.
class Mesh {
 public:
  /// On cuda the groups work over NCCL, on the GPU that is current in the calling thread: a device made
  /// before sees to that. One device at a time.
  Mesh(Session& session, const MeshShape& shape, device::DeviceKind device = device::DeviceKind::cpu,
       const MeshOptions& options = {});
  /// What a rank of such a mesh would have, without any peers: for sim.
  static Mesh imagined(const MeshShape& shape, int rank);
  /// One rank, without MPI.
  static Mesh alone();
  Mesh(Mesh&&) noexcept;
  ~Mesh();

  const MeshShape& shape() const;
  const MeshCoordinate& coordinate() const;
  Communicator& world();
  Communicator& axis(Axis axis);
  /// The dp x cp plane over which gradients are reduced and ZeRO shards.
  Communicator& data_plane();
  /// So far, in an axis and the groups made from it; the data plane counts as dp.
  Traffic traffic(Axis axis) const;

  /// On cuda: what NCCL is told by its variables, and who said so.
  std::vector<NcclSetting> nccl_settings() const;

  /// Throws where a library noticed by itself that a call of this rank failed, on any communicator of the
  /// mesh: names it, the call and the rank. Any thread may ask.
  void poll();
  /// Ends what waits for peers on this rank's device, so that whoever waits for it goes on to fail; nothing
  /// can be sent any more. For the error path; any thread may call it.
  void abandon() noexcept;

  /// Memory that peers in tp, or else in cp, reach directly (Communicator::allocate_exchange): for what lives
  /// within a step. Collective over these groups, and so is its release.
  device::Buffer allocate_exchange(device::Device& device, std::size_t size_bytes, device::MemoryKind kind,
                                   std::string_view label);

  /// A further communicator over the same ranks, for work that runs beside that of the first.
  std::unique_ptr<Communicator> duplicate(Communicator& of, const std::string& name);
  /// So too, for messages round a ring: from each rank to the one `step` (1 or -1) further. What a rank sends
  /// and what it receives do not wait for each other.
  std::unique_ptr<Communicator> ring(Communicator& of, int step, const std::string& name);
  /// The group of `width` neighbours in `of` that holds this rank. `width` divides the size.
  std::unique_ptr<Communicator> neighbours(Communicator& of, int width, const std::string& name);
  /// The ranks of `of` whose numbers differ by multiples of `stride`.
  std::unique_ptr<Communicator> strided(Communicator& of, int stride, const std::string& name);

 private:
  struct State;
  explicit Mesh(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Abandons a mesh when it goes away because of an exception. To be destroyed before whatever waits for the
/// GPU in its destructor, and would wait there for peers that no longer come.
class AbandonOnFailure {
 public:
  explicit AbandonOnFailure(Mesh& mesh) : mesh_(mesh) {}
  AbandonOnFailure(const AbandonOnFailure&) = delete;
  AbandonOnFailure& operator=(const AbandonOnFailure&) = delete;
  ~AbandonOnFailure() {
    if (std::uncaught_exceptions() > before_) mesh_.abandon();
  }

 private:
  Mesh& mesh_;
  int before_ = std::uncaught_exceptions();
};

}  // namespace cartan::comm
