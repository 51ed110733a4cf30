// The communicators of one rank of a mesh.
#pragma once

#include <memory>
#include <string>

#include "cartan/comm/mesh.hpp"
#include "cartan/comm/session.hpp"

namespace cartan::comm {

/// What a rank did in the data plane of some communicators.
struct Traffic {
  std::uint64_t bytes_sent = 0;
  double seconds = 0;
};

/// Over MPI: made by MPI_Cart_create over (pp, dp, cp, tp) and MPI_Cart_sub; everything that makes or
/// destroys groups is then collective over those it is made from.
class Mesh {
 public:
  Mesh(Session& session, const MeshShape& shape);
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

  /// A further communicator over the same ranks, for work that runs beside that of the first.
  std::unique_ptr<Communicator> duplicate(Communicator& of, const std::string& name);
  /// The group of `width` neighbours in `of` that holds this rank. `width` divides the size.
  std::unique_ptr<Communicator> neighbours(Communicator& of, int width, const std::string& name);
  /// The ranks of `of` whose numbers differ by multiples of `stride`.
  std::unique_ptr<Communicator> strided(Communicator& of, int stride, const std::string& name);

 private:
  struct State;
  explicit Mesh(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace cartan::comm
