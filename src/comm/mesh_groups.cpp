// Makes the groups of a mesh, over MPI or imagined.
#include "cartan/comm/mesh_groups.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "cartan/core/error.hpp"
#include "cartan/device/cuda_info.hpp"
#include "comm/local/local_communicator.hpp"
#include "comm/mpi/check.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "comm/nccl/nccl_groups.hpp"
#include "comm/session_state.hpp"

namespace cartan::comm {

struct Mesh::State {
  /// The ranks of `of` with the same color, in its order. Without peers only the group's size and this rank's
  /// place in it matter.
  std::unique_ptr<Communicator> split(Communicator& of, int color, int place, int size, NcclUse use,
                                      const std::string& name, int step = 1) {
    const std::shared_ptr<TrafficTotals> counted = totals_of(of);
    if (!session) return std::make_unique<LocalCommunicator>(name, place, size, imagined, counted, room);
    MPI_Comm raw = MPI_COMM_NULL;
    check(MPI_Comm_split(reinterpret_cast<MPI_Comm>(native_handle(of)), color, of.rank(), &raw), name,
          "set-up");
    return over_mpi(raw, name, counted, use, step);
  }
  std::unique_ptr<Communicator> over_mpi(MPI_Comm raw, const std::string& name,
                                         const std::shared_ptr<TrafficTotals>& counted, NcclUse use,
                                         int step = 1) const {
    MpiOptions with_totals = options;
    with_totals.totals = counted;
    if (nccl != nullptr) return nccl->make(CommHandle(raw), name, with_totals, use, step);
    return std::make_unique<MpiCommunicator>(CommHandle(raw), name, with_totals);
  }
  /// Of the axis that a communicator is, or comes from at one remove; none for the world.
  std::shared_ptr<TrafficTotals> totals_of(const Communicator& of) const {
    if (&of == data_plane.get()) return totals[static_cast<std::size_t>(Axis::dp)];
    for (std::size_t axis = 0; axis < axes.size(); ++axis)
      if (&of == axes[axis].get()) return totals[axis];
    return nullptr;
  }
  std::unique_ptr<Communicator> axes_of(std::array<int, 4> remain, const std::string& name, NcclUse use,
                                        const std::shared_ptr<TrafficTotals>& counted) {
    if (!session) {
      const std::array<int, 4> extents = shape.extents(),
                               at{coordinate.pp, coordinate.dp, coordinate.cp, coordinate.tp};
      int rank = 0, size = 1;
      for (std::size_t axis = 0; axis < 4; ++axis) {
        if (remain[axis] == 0) continue;
        rank = rank * extents[axis] + at[axis];
        size *= extents[axis];
      }
      return std::make_unique<LocalCommunicator>(name, rank, size, imagined, counted, room);
    }
    MPI_Comm raw = MPI_COMM_NULL;
    check(MPI_Cart_sub(reinterpret_cast<MPI_Comm>(native_handle(*world)), remain.data(), &raw), name,
          "set-up");
    return over_mpi(raw, name, counted, use);
  }
  /// What moves much data is connected now, in one order on all ranks: a rank that cannot be reached, or has
  /// no memory left for it, shows at the start.
  void make_axes() {
    for (Axis axis : kAxes) {
      std::array<int, 4> remain{};
      remain[static_cast<std::size_t>(axis)] = 1;
      const auto number = static_cast<std::size_t>(axis);
      totals[number] = std::make_shared<TrafficTotals>();
      const NcclUse use = axis == Axis::cp   ? NcclUse::all
                          : axis == Axis::tp ? NcclUse::collectives
                                             : NcclUse::on_demand;
      axes[number] = axes_of(remain, group_name(axis, coordinate), use, totals[number]);
    }
    data_plane = axes_of({0, 1, 1, 0}, plane_name(coordinate), NcclUse::collectives,
                         totals[static_cast<std::size_t>(Axis::dp)]);
  }

  bool session = false, imagined = false;
  MpiOptions options;
  std::shared_ptr<ReductionRoom> room;                // of imagined GPUs
  std::unique_ptr<NcclEnvironment> nccl_environment;  // on GPUs
  std::unique_ptr<NcclGroups> nccl;                   // so too
  MeshShape shape;
  MeshCoordinate coordinate;
  std::unique_ptr<Communicator> world;
  std::array<std::unique_ptr<Communicator>, 4> axes;
  std::unique_ptr<Communicator> data_plane;
  std::array<std::shared_ptr<TrafficTotals>, 4> totals;
};

namespace {

/// Throws on every rank of a node where two of them use the same GPU, which NCCL refuses with less to go by.
/// Collective over all ranks.
void require_own_gpu() {
  MPI_Comm raw = MPI_COMM_NULL;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &raw), "the node",
        "set-up");
  const CommHandle node(raw);
  int size = 0, rank = 0;
  check(MPI_Comm_size(raw, &size), "the node", "set-up");
  check(MPI_Comm_rank(raw, &rank), "the node", "set-up");
  using Address = std::array<char, 32>;
  Address mine{};
  device::gpu_address().copy(mine.data(), mine.size() - 1);
  std::vector<Address> all(static_cast<std::size_t>(size));
  check(MPI_Allgather(mine.data(), sizeof mine, MPI_CHAR, all.data(), sizeof mine, MPI_CHAR, raw), "the node",
        "set-up");
  for (std::size_t second = 1; second < all.size(); ++second) {
    const auto first = static_cast<std::size_t>(std::find(all.begin(), all.end(), all[second]) - all.begin());
    if (first < second)
      throw EnvironmentError(
          "run.device = cuda: ranks {} and {} of the {} on this node use the same GPU, {}: start one rank a "
          "GPU, and show each rank its own or all of them (CUDA_VISIBLE_DEVICES)",
          first, second, size, all[second].data());
  }
}

}  // namespace

Mesh::Mesh(std::unique_ptr<State> state) : state_(std::move(state)) {}
Mesh::Mesh(Mesh&&) noexcept = default;
Mesh::~Mesh() = default;

Mesh::Mesh(Session& session, const MeshShape& shape, device::DeviceKind device,
           const MeshOptions& mesh_options)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.session = true;
  s.options = session.state_->options;
  s.shape = resolve_mesh(shape, session.world_size());
  s.coordinate = coordinate_of(s.shape, session.rank());
  const std::array<int, 4> extents = s.shape.extents(), periods{};
  MPI_Comm raw = MPI_COMM_NULL;
  check(MPI_Cart_create(MPI_COMM_WORLD, 4, extents.data(), periods.data(), 0, &raw), "world", "set-up");
  if (device == device::DeviceKind::cuda) {
    require_own_gpu();
    const MeshWatch& watch = mesh_options.watch;
    s.nccl_environment = std::make_unique<NcclEnvironment>(mesh_options.nccl);
    NcclOptions options;
    options.call_timeout_s = watch.timeout_s;
    options.grace_s = watch.grace_s;
    if (s.shape.size() > 1)
      options.watch_interval_s = watch.interval_s;
    else
      options.room_bytes = 0;
    s.nccl = make_nccl_groups(options);
  }
  s.world = s.over_mpi(raw, "world", nullptr, NcclUse::on_demand);
  s.make_axes();
}

Mesh Mesh::imagined(const MeshShape& shape, int rank) {
  auto state = std::make_unique<State>();
  state->imagined = true;
  state->shape = shape;
  state->coordinate = coordinate_of(shape, rank);
  if (shape.size() > 1) state->room = std::make_shared<ReductionRoom>(ReductionRoom::kBytes);
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
Traffic Mesh::traffic(Axis axis) const {
  if (state_->nccl != nullptr) state_->nccl->read_clocks();
  const TrafficTotals& totals = *state_->totals.at(static_cast<std::size_t>(axis));
  return {totals.bytes_sent, totals.seconds};
}

std::vector<NcclSetting> Mesh::nccl_settings() const {
  return state_->nccl_environment == nullptr ? std::vector<NcclSetting>{}
                                             : state_->nccl_environment->settings();
}

void Mesh::poll() {
  if (state_->nccl != nullptr) state_->nccl->poll();
}
void Mesh::abandon() noexcept {
  if (state_->nccl != nullptr) state_->nccl->abort();
}

device::Buffer Mesh::allocate_exchange(device::Device& device, std::size_t size_bytes,
                                       device::MemoryKind kind, std::string_view label) {
  for (const Axis of : {Axis::tp, Axis::cp})
    if (axis(of).size() > 1) return axis(of).allocate_exchange(device, size_bytes, kind, label);
  return device.allocate(size_bytes, kind, label);
}

std::unique_ptr<Communicator> Mesh::duplicate(Communicator& of, const std::string& name) {
  return state_->split(of, 0, of.rank(), of.size(), NcclUse::on_demand, name);
}

std::unique_ptr<Communicator> Mesh::ring(Communicator& of, int step, const std::string& name) {
  return state_->split(of, 0, of.rank(), of.size(), NcclUse::ring, name, step);
}

std::unique_ptr<Communicator> Mesh::neighbours(Communicator& of, int width, const std::string& name) {
  CARTAN_ASSERT(width > 0 && of.size() % width == 0);
  return state_->split(of, of.rank() / width, of.rank() % width, width, NcclUse::collectives, name);
}

std::unique_ptr<Communicator> Mesh::strided(Communicator& of, int stride, const std::string& name) {
  CARTAN_ASSERT(stride > 0);
  const int color = of.rank() % stride;
  return state_->split(of, color, of.rank() / stride, (of.size() - color + stride - 1) / stride,
                       NcclUse::collectives, name);
}

}  // namespace cartan::comm
