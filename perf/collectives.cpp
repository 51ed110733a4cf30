// Canonical sums against the MPI library's own: reduce-scatter and all-reduce in place on float vectors of
// 64 KiB to 64 MiB; by shared memory, by messages, and, with four ranks or more, inside pretended nodes of
// two first and then by messages. Each repetition begins with values that every rank has just written, as
// gradients are; ours and MPI's take turns, and medians of the slowest rank's time are compared.
//   mpirun -n 4 collectives_benchmark [largest size in MiB]
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "cartan/comm/mesh_groups.hpp"
#include "cartan/core/text.hpp"
#include "cartan/core/version.hpp"

namespace cartan::comm {
namespace {

using Clock = std::chrono::steady_clock;

struct Contender {
  std::string name;
  std::span<float> vector;        ///< where the operand lies
  std::function<void()> run;      ///< in place
  std::span<const float> result;  ///< where the sum, or this rank's chunk of it, ends up
  Index first = 0;                ///< element of the vector at which the result begins
  std::vector<double> seconds;    ///< slowest rank, one entry a repetition
};

/// Small whole numbers: every order of summation gives the same bits.
float value_at(int rank, Index i) { return static_cast<float>(rank + 1 + i % 7); }

void fill(std::span<float> vector, int rank) {
  for (std::size_t i = 0; i < vector.size(); ++i) vector[i] = value_at(rank, static_cast<Index>(i));
}

void verify(const Contender& contender, int size) {
  for (std::size_t i = 0; i < contender.result.size(); ++i) {
    float expected = 0;
    for (int r = 0; r < size; ++r) expected += value_at(r, contender.first + static_cast<Index>(i));
    if (contender.result[i] == expected) continue;
    throw InternalError("{}: element {} is {}, expected {}", contender.name,
                        contender.first + static_cast<Index>(i), contender.result[i], expected);
  }
}

void repeat_once(Contender& contender, int rank) {
  fill(contender.vector, rank);
  MPI_Barrier(MPI_COMM_WORLD);
  const auto start = Clock::now();
  contender.run();
  const double mine = std::chrono::duration<double>(Clock::now() - start).count();
  double slowest = 0;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  contender.seconds.push_back(slowest);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<Index>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// Times both in turn and prints one line.
void compare(const char* verb, const std::string& way, double bus_factor, Contender ours, Contender theirs,
             int rank, int size) {
  const std::size_t bytes = ours.vector.size_bytes();
  const auto repetitions = std::clamp<std::size_t>((std::size_t{1} << 29) / bytes, 9, 201);
  for (Contender* contender : {&ours, &theirs}) {
    for (int warm_up = 0; warm_up < 3; ++warm_up) repeat_once(*contender, rank);
    verify(*contender, size);
    contender->seconds.clear();
  }
  for (std::size_t i = 0; i < repetitions; ++i) {
    repeat_once(ours, rank);
    repeat_once(theirs, rank);
  }
  if (rank != 0) return;
  const double a = median(ours.seconds), b = median(theirs.seconds);
  const auto rate = [&](double seconds) { return static_cast<double>(bytes) / seconds / 1e9; };
  fmt::print("{:<15} {:<9} {:>8} {:>10.1f} {:>8.2f} {:>8.2f} {:>10.1f} {:>8.2f} {:>8.2f} {:>7.2f}\n", verb,
             way, format_bytes(bytes), a * 1e6, rate(a), rate(a) * bus_factor, b * 1e6, rate(b),
             rate(b) * bus_factor, b / a);
  std::fflush(stdout);
}

/// One size, one way: both verbs.
void measure(const std::string& way, Communicator& comm, Index bytes) {
  const int rank = comm.rank(), size = comm.size();
  const auto device = device::make_device(device::DeviceKind::cpu, {.threads = 1});
  const auto stream = device::make_inline_stream("perf");
  const CanonicalTree tree(size);
  // Whole chunks for every rank, as MPI_Reduce_scatter_block wants.
  const Index unit = device::kSumBlock * size, count = (bytes / 4 + unit - 1) / unit * unit;
  const auto elements = static_cast<std::size_t>(count);
  const auto exchange =
      comm.allocate_exchange(*device, elements * sizeof(float), device::MemoryKind::communication, "operand");
  const std::span<float> slot(exchange.as<float>(), elements);
  std::vector<float> plain(elements);
  const LeafRange chunk = chunk_range(count, rank, size);
  const auto chunk_size = static_cast<std::size_t>(chunk.end - chunk.begin);
  const auto own_chunk = slot.subspan(static_cast<std::size_t>(chunk.begin), chunk_size);
  const PartialSums sums{&tree, {slot.data()}, count};
  const double p = size;
  compare("reduce_scatter", way, (p - 1) / p,
          {"reduce_scatter",
           slot,
           [&] { comm.reduce_scatter(sums, {own_chunk.data()}, *stream).wait(); },
           own_chunk,
           chunk.begin,
           {}},
          {"MPI_Reduce_scatter_block",
           plain,
           [&] {
             MPI_Reduce_scatter_block(MPI_IN_PLACE, plain.data(), static_cast<int>(chunk_size), MPI_FLOAT,
                                      MPI_SUM, MPI_COMM_WORLD);
           },
           std::span(plain).first(chunk_size),
           chunk.begin,
           {}},
          rank, size);
  compare("all_reduce", way, 2 * (p - 1) / p,
          {"all_reduce", slot, [&] { comm.all_reduce(sums, *stream).wait(); }, slot, 0, {}},
          {"MPI_Allreduce",
           plain,
           [&] {
             MPI_Allreduce(MPI_IN_PLACE, plain.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                           MPI_COMM_WORLD);
           },
           plain,
           0,
           {}},
          rank, size);
}

/// A mesh that works as CARTAN_COMM = `way` says.
Mesh mesh_by(const char* way, int argc, char** argv) {
  setenv("CARTAN_COMM", way, 1);
  Session session(argc, argv);
  return Mesh(session, {});
}

void run(Session& session, Index largest_bytes, int argc, char** argv) {
  const int size = session.world_size();
  std::vector<std::pair<std::string, Mesh>> ways;
  for (const char* way : {"auto", "messages", "nodes:2"}) {
    if (std::string_view(way) == "nodes:2" && (size < 4 || size % 2 != 0)) continue;
    ways.emplace_back(way, mesh_by(way, argc, argv));
  }
  if (session.rank() == 0) {
    fmt::print("cartan {}, {}, {} ranks on {}\n", version(), Session::library_version(), size,
               session.host());
    fmt::print("{:<15} {:<9} {:>8} {:>28} {:>28} {:>7}\n", "", "", "", "cartan: us, algbw, busbw",
               "MPI: us, algbw, busbw GB/s", "ratio");
  }
  for (Index bytes = 64 << 10; bytes <= largest_bytes; bytes *= 4)
    for (auto& [way, mesh] : ways) measure(way, mesh.data_plane(), bytes);
}

}  // namespace
}  // namespace cartan::comm

int main(int argc, char** argv) {
  try {
    cartan::comm::Session session(argc, argv);
    const cartan::Index largest_mib = argc > 1 ? std::atol(argv[1]) : 64;
    cartan::comm::run(session, largest_mib << 20, argc, argv);
    return 0;
  } catch (const cartan::Error& error) {
    std::fprintf(stderr, "collectives_benchmark: %s\n", error.what());
    cartan::comm::Session::abort(static_cast<int>(error.code()));
  }
}
