// Starts and ends MPI.
#include "cartan/comm/session.hpp"

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "cartan/core/log.hpp"
#include "comm/launch.hpp"
#include "comm/mpi/check.hpp"
#include "comm/session_state.hpp"

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

MpiOptions options_of_environment() {
  MpiOptions options;
  const std::string value = process_environment("CARTAN_COMM").value_or("auto");
  if (value == "auto") return options;
  options.force_messages = value == "messages";
  constexpr std::string_view kNodes = "nodes:";
  const char* const end = value.data() + value.size();
  const bool nodes = value.starts_with(kNodes) &&
                     std::from_chars(value.data() + kNodes.size(), end, options.ranks_per_node).ptr == end &&
                     options.ranks_per_node > 0;
  if (options.force_messages || nodes) return options;
  throw ConfigError(
      "the environment variable CARTAN_COMM is \"{}\": use auto, messages, or nodes:K with K ranks on each "
      "pretended node",
      value);
}

}  // namespace

Session::Session(int& argc, char**& argv) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.options = options_of_environment();
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
  s.options.spin = s.ranks_on_node <= together;
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

std::uintptr_t native_handle(const Communicator& comm) {
  const auto* mpi = dynamic_cast<const MpiGroup*>(&comm);
  if (mpi == nullptr) throw InternalError("{} is not an MPI communicator", comm.name());
  return reinterpret_cast<std::uintptr_t>(mpi->raw());
}

}  // namespace cartan::comm
