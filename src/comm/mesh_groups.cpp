// Makes the groups of a mesh, over MPI or imagined.
#include "cartan/comm/mesh_groups.hpp"

#include <array>
#include <functional>

#include "comm/mpi/check.hpp"
#include "comm/session_state.hpp"

namespace cartan::comm {

struct Mesh::State {
  /// The ranks of `of` with the same color, in its order. Without peers only the group's size and this rank's
  /// place in it matter.
  std::unique_ptr<Communicator> split(Communicator& of, int color, int place, int size,
                                      const std::string& name) {
    if (!session) return make_local_communicator(name, place, size, imagined);
    MPI_Comm raw = MPI_COMM_NULL;
    check(MPI_Comm_split(reinterpret_cast<MPI_Comm>(native_handle(of)), color, of.rank(), &raw), name,
          "set-up");
    return std::make_unique<MpiCommunicator>(CommHandle(raw), name, options);
  }
  std::unique_ptr<Communicator> axes_of(std::array<int, 4> remain, const std::string& name) {
    if (!session) {
      const std::array<int, 4> extents = shape.extents(),
                               at{coordinate.pp, coordinate.dp, coordinate.cp, coordinate.tp};
      int rank = 0, size = 1;
      for (std::size_t axis = 0; axis < 4; ++axis) {
        if (remain[axis] == 0) continue;
        rank = rank * extents[axis] + at[axis];
        size *= extents[axis];
      }
      return make_local_communicator(name, rank, size, imagined);
    }
    MPI_Comm raw = MPI_COMM_NULL;
    check(MPI_Cart_sub(reinterpret_cast<MPI_Comm>(native_handle(*world)), remain.data(), &raw), name,
          "set-up");
    return std::make_unique<MpiCommunicator>(CommHandle(raw), name, options);
  }
  void make_axes() {
    for (Axis axis : kAxes) {
      std::array<int, 4> remain{};
      remain[static_cast<std::size_t>(axis)] = 1;
      axes[static_cast<std::size_t>(axis)] = axes_of(remain, group_name(axis, coordinate));
    }
    data_plane = axes_of({0, 1, 1, 0}, plane_name(coordinate));
  }

  bool session = false, imagined = false;
  MpiOptions options;
  MeshShape shape;
  MeshCoordinate coordinate;
  std::unique_ptr<Communicator> world;
  std::array<std::unique_ptr<Communicator>, 4> axes;
  std::unique_ptr<Communicator> data_plane;
};

Mesh::Mesh(std::unique_ptr<State> state) : state_(std::move(state)) {}
Mesh::Mesh(Mesh&&) noexcept = default;
Mesh::~Mesh() = default;

Mesh::Mesh(Session& session, const MeshShape& shape) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.session = true;
  s.options = session.state_->options;
  s.shape = resolve_mesh(shape, session.world_size());
  s.coordinate = coordinate_of(s.shape, session.rank());
  const std::array<int, 4> extents = s.shape.extents(), periods{};
  MPI_Comm raw = MPI_COMM_NULL;
  check(MPI_Cart_create(MPI_COMM_WORLD, 4, extents.data(), periods.data(), 0, &raw), "world", "set-up");
  s.world = std::make_unique<MpiCommunicator>(CommHandle(raw), "world", s.options);
  s.make_axes();
}

Mesh Mesh::imagined(const MeshShape& shape, int rank) {
  auto state = std::make_unique<State>();
  state->imagined = true;
  state->shape = shape;
  state->coordinate = coordinate_of(shape, rank);
  state->world = make_local_communicator("world", rank, shape.size(), true);
  state->make_axes();
  return Mesh(std::move(state));
}

Mesh Mesh::alone() {
  auto state = std::make_unique<State>();
  state->shape = {1, 1, 1, 1};
  state->world = make_local_communicator("world");
  state->make_axes();
  return Mesh(std::move(state));
}

const MeshShape& Mesh::shape() const { return state_->shape; }
const MeshCoordinate& Mesh::coordinate() const { return state_->coordinate; }
Communicator& Mesh::world() { return *state_->world; }
Communicator& Mesh::axis(Axis axis) { return *state_->axes.at(static_cast<std::size_t>(axis)); }
Communicator& Mesh::data_plane() { return *state_->data_plane; }

std::unique_ptr<Communicator> Mesh::duplicate(Communicator& of, const std::string& name) {
  return state_->split(of, 0, of.rank(), of.size(), name);
}

std::unique_ptr<Communicator> Mesh::neighbours(Communicator& of, int width, const std::string& name) {
  CARTAN_ASSERT(width > 0 && of.size() % width == 0);
  return state_->split(of, of.rank() / width, of.rank() % width, width, name);
}

std::unique_ptr<Communicator> Mesh::strided(Communicator& of, int stride, const std::string& name) {
  CARTAN_ASSERT(stride > 0);
  const int color = of.rank() % stride;
  return state_->split(of, color, of.rank() / stride, (of.size() - color + stride - 1) / stride, name);
}

}  // namespace cartan::comm
