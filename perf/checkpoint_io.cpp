// Checkpoint writing against the file system: a Llama-like model's parameters and moments (about 1 GiB in
// all) written
//   raw      by plain writes, each rank one contiguous part of a file (what the disk can do),
//   cartan   by store::write_checkpoint,
//   HDF5     by one collective H5Dwrite a tensor over the same parts (what HDF5 itself offers),
// all with fsync, for three placements: each rank holds a part of every unit (ZeRO), rows of every matrix, or
// columns of every matrix (tensor parallel). They take turns; medians over repetitions are compared.
//   mpirun -n 4 checkpoint_io_benchmark FOLDER [layers] [repetitions] [units|rows|columns]...
#include <fcntl.h>
#include <fmt/format.h>
#include <hdf5.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "cartan/comm/mesh_groups.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/text.hpp"
#include "cartan/core/version.hpp"
#include "cartan/store/checkpoint.hpp"

namespace cartan::store {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Index kHidden = 768, kFfn = 2048, kVocabulary = 8192;

/// The parameters of a unit (embedding, each block, head); a rank holds a contiguous part of each unit.
std::vector<std::vector<TensorInfo>> make_units(int layers) {
  std::vector<std::vector<TensorInfo>> units{{{"embed", DType::f32, {kVocabulary, kHidden}}}};
  for (int i = 0; i < layers; ++i) {
    const std::string layer = fmt::format("layers.{}.", i);
    units.push_back({{layer + "attention_norm", DType::f32, {kHidden}},
                     {layer + "q", DType::f32, {kHidden, kHidden}},
                     {layer + "k", DType::f32, {kHidden / 3, kHidden}},
                     {layer + "v", DType::f32, {kHidden / 3, kHidden}},
                     {layer + "o", DType::f32, {kHidden, kHidden}},
                     {layer + "ffn_norm", DType::f32, {kHidden}},
                     {layer + "gate", DType::f32, {kFfn, kHidden}},
                     {layer + "up", DType::f32, {kFfn, kHidden}},
                     {layer + "down", DType::f32, {kHidden, kFfn}}});
  }
  units.push_back({{"norm", DType::f32, {kHidden}}, {"head", DType::f32, {kVocabulary, kHidden}}});
  return units;
}

/// A rank's part of a tensor as HDF5 is told: a box of the dataset.
struct Box {
  std::vector<hsize_t> extents, first, count;
  float* data = nullptr;
};

/// What one rank writes.
struct Load {
  std::vector<TensorInfo> tensors;
  std::vector<Slab> slabs;
  std::vector<Box> boxes;  ///< one a tensor
  std::vector<float> memory;
  std::size_t total_bytes = 0;
};

/// This rank's part of a unit's tensors; `at` counts the unit's elements before this one.
Box part_of(const std::string& placement, const TensorInfo& tensor, LeafRange part, Index at, int rank,
            int ranks) {
  const auto size = [](Index n) { return static_cast<hsize_t>(n); };
  if (placement == "units" || (placement == "columns" && tensor.shape.size() == 1)) {
    const LeafRange own = placement == "units" ? LeafRange{part.begin - at, part.end - at}
                                               : leaf_range(tensor.elements(), rank, ranks);
    const Index first = std::clamp(own.begin, Index{0}, tensor.elements());
    const Index end = std::clamp(own.end, first, tensor.elements());
    return {{size(tensor.elements())}, {size(first)}, {size(end - first)}};
  }
  Box box;
  const std::size_t cut = placement == "rows" ? 0 : 1;
  for (std::size_t axis = 0; axis < tensor.shape.size(); ++axis) {
    const Index extent = tensor.shape[axis];
    const LeafRange own = axis == cut ? leaf_range(extent, rank, ranks) : LeafRange{0, extent};
    box.extents.push_back(size(extent));
    box.first.push_back(size(own.begin));
    box.count.push_back(size(own.end - own.begin));
  }
  return box;
}

Load make_load(const std::string& placement, int layers, int rank, int ranks) {
  Load load;
  for (const char* kind : {"model/", "optimizer/exp_avg/", "optimizer/exp_avg_sq/"})
    for (const auto& unit : make_units(layers)) {
      Index elements = 0, at = 0;
      for (const TensorInfo& tensor : unit) elements += tensor.elements();
      const LeafRange part = leaf_range(elements, rank, ranks);
      for (const TensorInfo& tensor : unit) {
        load.boxes.push_back(part_of(placement, tensor, part, at, rank, ranks));
        load.tensors.push_back({kind + tensor.path, tensor.dtype, tensor.shape});
        at += tensor.elements();
      }
      load.total_bytes += static_cast<std::size_t>(elements) * sizeof(float);
    }
  std::size_t mine = 0;
  for (const Box& box : load.boxes)
    mine += std::accumulate(box.count.begin(), box.count.end(), std::size_t{1}, std::multiplies<>());
  load.memory.resize(mine);
  for (std::size_t i = 0; i < load.memory.size(); ++i)
    load.memory[i] = static_cast<float>((i * 2654435761u + static_cast<std::size_t>(rank)) % 1000003);
  // A box is as many contiguous slabs as it has rows.
  float* next = load.memory.data();
  for (std::size_t i = 0; i < load.boxes.size(); ++i) {
    Box& box = load.boxes[i];
    box.data = next;
    const bool whole_rows = box.extents.size() == 1 || box.count[1] == box.extents[1];
    const Index width = box.extents.size() == 1 ? 1 : static_cast<Index>(box.extents[1]);
    const Index slabs = whole_rows ? 1 : static_cast<Index>(box.count[0]);
    const Index count =
        whole_rows ? static_cast<Index>(box.count[0]) * width : static_cast<Index>(box.count[1]);
    for (Index s = 0; s < slabs && count > 0; ++s, next += count) {
      const Index row = static_cast<Index>(box.first[0]) + s;
      load.slabs.push_back(
          {i, row * width + (whole_rows ? 0 : static_cast<Index>(box.first[1])), count, next});
    }
  }
  return load;
}

void require(bool good, const char* what) {
  if (!good) throw IoError("cannot {}", what);
}

void write_raw(const std::filesystem::path& path, const Load& load, comm::Communicator& comm) {
  if (comm.rank() == 0) ::close(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666));
  comm.barrier();
  const int fd = ::open(path.c_str(), O_WRONLY);
  const auto* data = reinterpret_cast<const char*>(load.memory.data());
  const std::size_t bytes = load.memory.size() * sizeof(float);
  const std::size_t begin =
      load.total_bytes / static_cast<std::size_t>(comm.size()) * static_cast<std::size_t>(comm.rank());
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t now = ::pwrite(fd, data + done, bytes - done, static_cast<off_t>(begin + done));
    require(now > 0, "write the raw file");
    done += static_cast<std::size_t>(now);
  }
  require(::fsync(fd) == 0 && ::close(fd) == 0, "sync the raw file");
  comm.barrier();
}

void write_cartan(const std::filesystem::path& path, const Load& load, comm::Communicator& comm) {
  write_checkpoint(path, {{"step", 1}}, load.tensors, load.slabs, comm, {});
}

void write_hdf5(const std::filesystem::path& path, const Load& load, comm::Communicator& comm) {
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS), creation = H5Pcreate(H5P_DATASET_CREATE);
  const hid_t links = H5Pcreate(H5P_LINK_CREATE), transfer = H5Pcreate(H5P_DATASET_XFER);
  H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL);
  H5Pset_coll_metadata_write(access, true);
  H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER);
  H5Pset_create_intermediate_group(links, 1);
  H5Pset_dxpl_mpio(transfer, H5FD_MPIO_COLLECTIVE);
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
  require(file >= 0, "make the HDF5 file");
  for (std::size_t i = 0; i < load.tensors.size(); ++i) {
    const Box& box = load.boxes[i];
    const auto rank = static_cast<int>(box.extents.size());
    const bool has = std::find(box.count.begin(), box.count.end(), hsize_t{0}) == box.count.end();
    const hid_t in_file = H5Screate_simple(rank, box.extents.data(), nullptr);
    const hid_t in_memory = H5Screate_simple(rank, box.count.data(), nullptr);
    if (has)
      H5Sselect_hyperslab(in_file, H5S_SELECT_SET, box.first.data(), nullptr, box.count.data(), nullptr);
    else
      H5Sselect_none(in_file);
    const hid_t dataset =
        H5Dcreate2(file, load.tensors[i].path.c_str(), H5T_IEEE_F32LE, in_file, links, creation, H5P_DEFAULT);
    require(H5Dwrite(dataset, H5T_NATIVE_FLOAT, in_memory, in_file, transfer, box.data) >= 0,
            "write a dataset");
    H5Dclose(dataset);
    H5Sclose(in_memory);
    H5Sclose(in_file);
  }
  require(H5Fflush(file, H5F_SCOPE_GLOBAL) >= 0 && H5Fclose(file) >= 0, "finish the HDF5 file");
  for (const hid_t list : {access, creation, links, transfer}) H5Pclose(list);
  comm.barrier();
}

struct Contender {
  const char* name;
  void (*write)(const std::filesystem::path&, const Load&, comm::Communicator&);
  std::vector<double> seconds{};
};

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

void run(comm::Session& session, comm::Communicator& comm, const std::filesystem::path& folder,
         const std::string& placement, int layers, int repetitions) {
  const Load load = make_load(placement, layers, comm.rank(), comm.size());
  const auto path = folder / "checkpoint-io-benchmark.h5";
  std::vector<Contender> contenders{{"raw", write_raw}, {"cartan", write_cartan}, {"HDF5", write_hdf5}};
  for (int repetition = -1; repetition < repetitions; ++repetition)  // the first one warms up
    for (Contender& contender : contenders) {
      if (comm.rank() == 0) std::filesystem::remove(path);
      comm.barrier();
      const auto start = Clock::now();
      contender.write(path, load, comm);
      const std::chrono::duration<double> elapsed = Clock::now() - start;
      const double slowest =
          static_cast<double>(comm.max(static_cast<std::int64_t>(elapsed.count() * 1e9))) / 1e9;
      if (repetition >= 0) contender.seconds.push_back(slowest);
      if (repetition < 0 && contender.write == write_cartan && comm.rank() == 0)
        CheckpointReader(path).verify();
    }
  if (comm.rank() != 0) return;
  std::filesystem::remove(path);
  fmt::print("cartan {}, {}, {} ranks on {}, {} in {} tensors, cut by {}, to {}\n", version(),
             comm::Session::library_version(), comm.size(), session.host(), format_bytes(load.total_bytes),
             load.tensors.size(), placement, folder.string());
  fmt::print("{:<8} {:>10} {:>10} {:>10} {:>12}\n", "", "median s", "best s", "GB/s", "of raw");
  const double raw = quantile(contenders[0].seconds, 0.5);
  for (const Contender& contender : contenders) {
    const double median = quantile(contender.seconds, 0.5);
    fmt::print("{:<8} {:>10.3f} {:>10.3f} {:>10.2f} {:>10.0f} %\n", contender.name, median,
               quantile(contender.seconds, 0), static_cast<double>(load.total_bytes) / median / 1e9,
               100 * raw / median);
  }
}

}  // namespace
}  // namespace cartan::store

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(
        stderr,
        "usage: mpirun -n 4 checkpoint_io_benchmark FOLDER [layers] [repetitions] [units|rows|columns]...\n");
    return 64;
  }
  try {
    cartan::store::prepare_environment();
    cartan::comm::Session session(argc, argv);
    cartan::comm::Mesh mesh(session, {});
    std::vector<std::string> placements(argv + std::min(argc, 4), argv + argc);
    if (placements.empty()) placements = {"units", "rows", "columns"};
    for (const std::string& placement : placements)
      cartan::store::run(session, mesh.world(), argv[1], placement, argc > 2 ? std::atoi(argv[2]) : 12,
                         argc > 3 ? std::atoi(argv[3]) : 9);
    return 0;
  } catch (const cartan::Error& error) {
    std::fprintf(stderr, "checkpoint_io_benchmark: %s\n", error.what());
    cartan::comm::Session::abort(static_cast<int>(error.code()));
  }
}
