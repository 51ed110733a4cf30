// Starts and ends MPI, and makes the communicators of the mesh.
#include "cartan/comm/session.hpp"

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "cartan/core/log.hpp"
#include "comm/launch.hpp"
#include "comm/mpi/check.hpp"
#include "comm/mpi/mpi_communicator.hpp"

namespace cartan::comm {
namespace {

bool is_initialized() {
  int yes = 0;
  MPI_Initialized(&yes);
  return yes != 0;
}

bool is_finalized() {
  int yes = 0;
  MPI_Finalized(&yes);
  return yes != 0;
}

cpu_set_t allowed_cpus() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  sched_getaffinity(0, sizeof cpus, &cpus);
  return cpus;
}

/// Open MPI's blocking calls spin for ever unless told to yield; it must be told before it starts.
void yield_where_crowded() {
  const cpu_set_t cpus = allowed_cpus();
  if (is_crowded(process_environment, CPU_COUNT(&cpus))) setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
}

/// CPUs that the ranks of the node may use together. Collective over `node`.
int cpus_of_node(MPI_Comm node) {
  const cpu_set_t mine = allowed_cpus();
  cpu_set_t together;
  CPU_ZERO(&together);
  static_assert(sizeof(cpu_set_t) % sizeof(std::uint64_t) == 0);
  check(
      MPI_Allreduce(&mine, &together, sizeof(cpu_set_t) / sizeof(std::uint64_t), MPI_UINT64_T, MPI_BOR, node),
      "the node", "set-up");
  return CPU_COUNT(&together);
}

bool messages_asked_for() {
  const std::string value = process_environment("CARTAN_COMM").value_or("auto");
  if (value != "auto" && value != "messages") {
    throw ConfigError("the environment variable CARTAN_COMM is \"{}\": use auto or messages", value);
  }
  return value == "messages";
}

}  // namespace

struct Session::State {
  bool made_mpi = false;
  int thread_level = MPI_THREAD_SINGLE;
  int rank = 0, world_size = 1, node_rank = 0, ranks_on_node = 1, threads_of_rank = 1;
  std::string host;
  MpiOptions options;
};

Session::Session(int& argc, char**& argv) : state_(std::make_unique<State>()) {
  State& s = *state_;
  const bool force_messages = messages_asked_for();
  if (is_initialized()) {  // by the program around this one, which also finalizes it
    MPI_Query_thread(&s.thread_level);
  } else {
    refuse_launch_without_pmi(process_environment);
    yield_where_crowded();
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &s.thread_level) != MPI_SUCCESS) {
      throw EnvironmentError("MPI does not start ({})", library_version());
    }
    s.made_mpi = true;
  }
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_COMM_WORLD", "set-up");
  check(MPI_Comm_rank(MPI_COMM_WORLD, &s.rank), "MPI_COMM_WORLD", "set-up");
  check(MPI_Comm_size(MPI_COMM_WORLD, &s.world_size), "MPI_COMM_WORLD", "set-up");
  log::set_rank(s.rank, s.world_size);
  refuse_singletons(process_environment, s.world_size);
  if (s.thread_level < MPI_THREAD_SERIALIZED) {
    throw EnvironmentError(
        "this MPI allows calls from one thread only ({}); cartan needs one built with thread support",
        library_version());
  }

  MPI_Comm raw = MPI_COMM_NULL;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &raw), "MPI_COMM_WORLD",
        "set-up");
  const CommHandle node(raw);
  check(MPI_Comm_rank(raw, &s.node_rank), "the node", "set-up");
  check(MPI_Comm_size(raw, &s.ranks_on_node), "the node", "set-up");
  std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
  int length = 0;
  check(MPI_Get_processor_name(name.data(), &length), "MPI_COMM_WORLD", "set-up");
  s.host.assign(name.data(), static_cast<std::size_t>(length));
  const cpu_set_t mine = allowed_cpus();
  const int own = CPU_COUNT(&mine), together = cpus_of_node(raw);
  s.threads_of_rank = std::max(1, own < together ? own : together / s.ranks_on_node);
  s.options = {.force_messages = force_messages, .spin = s.ranks_on_node <= together};
}

Session::~Session() {
  if (!state_->made_mpi || is_finalized() || std::uncaught_exceptions() > 0) return;
  MPI_Finalize();
}

int Session::rank() const { return state_->rank; }
int Session::world_size() const { return state_->world_size; }
int Session::node_rank() const { return state_->node_rank; }
int Session::ranks_on_node() const { return state_->ranks_on_node; }
int Session::threads_of_rank() const { return state_->threads_of_rank; }
std::string Session::host() const { return state_->host; }
bool Session::thread_multiple() const { return state_->thread_level >= MPI_THREAD_MULTIPLE; }

void Session::abort(int code) {
  std::fflush(nullptr);
  if (is_initialized() && !is_finalized()) MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);
}

std::string Session::library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string whole(text.data(), static_cast<std::size_t>(length));
  return whole.substr(0, whole.find_first_of(",\n"));
}

struct Mesh::State {
  MpiOptions options;
  MeshShape shape;
  MeshCoordinate coordinate;
  std::unique_ptr<MpiCommunicator> world;
  std::array<std::unique_ptr<MpiCommunicator>, 4> axes;
  std::unique_ptr<MpiCommunicator> data_plane;

  std::unique_ptr<MpiCommunicator> sub(std::array<int, 4> remain, const std::string& name) const {
    MPI_Comm raw = MPI_COMM_NULL;
    check(MPI_Cart_sub(world->raw(), remain.data(), &raw), name, "set-up");
    return std::make_unique<MpiCommunicator>(CommHandle(raw), name, options);
  }
};

Mesh::Mesh(Session& session, const MeshShape& shape) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.options = session.state_->options;
  s.shape = resolve_mesh(shape, session.world_size());
  s.coordinate = coordinate_of(s.shape, session.rank());
  const std::array<int, 4> extents = s.shape.extents(), periods{};
  MPI_Comm raw = MPI_COMM_NULL;
  check(MPI_Cart_create(MPI_COMM_WORLD, 4, extents.data(), periods.data(), 0, &raw), "world", "set-up");
  s.world = std::make_unique<MpiCommunicator>(CommHandle(raw), "world", s.options);
  for (Axis axis : kAxes) {
    std::array<int, 4> remain{};
    remain[static_cast<std::size_t>(axis)] = 1;
    s.axes[static_cast<std::size_t>(axis)] = s.sub(remain, group_name(axis, s.coordinate));
  }
  s.data_plane = s.sub({0, 1, 1, 0}, plane_name(s.coordinate));
}

Mesh::~Mesh() = default;

const MeshShape& Mesh::shape() const { return state_->shape; }
const MeshCoordinate& Mesh::coordinate() const { return state_->coordinate; }
Communicator& Mesh::world() { return *state_->world; }
Communicator& Mesh::axis(Axis axis) { return *state_->axes.at(static_cast<std::size_t>(axis)); }
Communicator& Mesh::data_plane() { return *state_->data_plane; }

std::unique_ptr<Communicator> Mesh::duplicate_world(const std::string& name) {
  CommHandle copy = duplicate(state_->world->raw(), name);
  return std::make_unique<MpiCommunicator>(std::move(copy), name, state_->options);
}

std::uintptr_t native_handle(const Communicator& comm) {
  const auto* mpi = dynamic_cast<const MpiCommunicator*>(&comm);
  if (mpi == nullptr) throw InternalError("{} is not an MPI communicator", comm.name());
  return reinterpret_cast<std::uintptr_t>(mpi->raw());
}

}  // namespace cartan::comm
