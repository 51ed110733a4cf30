// How long a model's parameters take from a Hugging Face folder into memory, beside reading the same files
// once, both from the page cache. They take turns; medians are compared.
//   load_folder_benchmark FOLDER [repetitions] [threads] [fp32|bf16]
// Makes FOLDER first where it is not there: about 1 GB of random parameters in fp32 or bf16. Prints one JSON
// line.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cartan/comm/mesh_groups.hpp"
#include "cartan/core/error.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/version.hpp"
#include "cartan/store/model_folder_writer.hpp"
#include "cartan/train/loaded_model.hpp"

namespace cartan {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// 250 million parameters in fp32, twice as many in bf16.
model::ModelConfig model_of_about_1_gb(DType dtype) {
  model::ModelConfig config;
  config.hidden = 1024;
  config.layers = dtype == DType::f32 ? 15 : 34;
  config.heads = 16;
  config.kv_heads = 8;
  config.ffn = 3072;
  config.vocab = 32000;
  config.max_length = 2048;
  config.derive(config.vocab);
  return config;
}

void make_folder(const fs::path& folder, DType dtype) {
  const model::ModelConfig config = model_of_about_1_gb(dtype);
  const auto alone = comm::make_local_communicator("benchmark");
  // Which values does not matter, as long as they are not all the same.
  const store::ReadParameter read = [](const std::string&, Index first, Index count, float* out) {
    for (Index i = 0; i < count; ++i)
      out[i] = static_cast<float>((first + i) * 7919 % 65521) / 65521.0F - 0.5F;
  };
  store::FolderOptions options;
  options.dtype = dtype;
  store::write_model_folder(folder, config, read, options, *alone);
}

std::vector<fs::path> parameter_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

/// Reads every file from its beginning to its end, a piece after the other, into the same memory, or into new
/// memory as a device gives it.
double read_files(const std::vector<fs::path>& files, bool keeps) {
  constexpr std::size_t kPiece = std::size_t{8} << 20;
  const auto device = device::make_device(device::DeviceKind::cpu, {});
  const auto begin = Clock::now();
  for (const fs::path& path : files) {
    const std::size_t bytes = fs::file_size(path);
    const device::Buffer memory =
        device->allocate(keeps ? bytes + kPiece : kPiece, device::MemoryKind::io, "a file");
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) throw IoError("cannot open {}", path.string());
    std::size_t done = 0;
    for (ssize_t got = 1; got > 0; done += static_cast<std::size_t>(got)) {
      got = ::read(fd, memory.as<char>() + (keeps ? done : 0), kPiece);
      if (got < 0) throw IoError("cannot read {}", path.string());
    }
    ::close(fd);
  }
  return seconds_since(begin);
}

double load(const fs::path& folder, DType compute, int threads) {
  device::DeviceOptions options;
  options.threads = threads;
  const auto device = device::make_device(device::DeviceKind::cpu, options);
  comm::Mesh alone = comm::Mesh::alone();
  const auto begin = Clock::now();
  const train::LoadedModel model = train::load_model(folder, compute, *device, alone);
  return seconds_since(begin);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int run(int argc, char** argv) {
  if (argc < 2) throw UsageError("usage: load_folder_benchmark FOLDER [repetitions] [threads] [fp32|bf16]");
  const fs::path folder = argv[1];
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 5, threads = argc > 3 ? std::atoi(argv[3]) : 2;
  const DType dtype = dtype_from_name(argc > 4 ? argv[4] : "fp32");
  if (!fs::exists(folder)) make_folder(folder, dtype);
  const std::vector<fs::path> files = parameter_files(folder);
  std::uintmax_t bytes = 0;
  for (const fs::path& file : files) bytes += fs::file_size(file);
  std::vector<double> reading, keeping, loading;
  read_files(files, false);  // into the page cache
  for (int i = 0; i < repetitions; ++i) {
    reading.push_back(read_files(files, false));
    keeping.push_back(read_files(files, true));
    loading.push_back(load(folder, DType::f32, threads));
  }
  fmt::print("{}\n", Json{{"version", version()},
                          {"bytes", bytes},
                          {"files", files.size()},
                          {"threads", threads},
                          {"read_s", reading},
                          {"read_and_keep_s", keeping},
                          {"load_s", loading},
                          {"load_by_read", median(loading) / median(reading)},
                          {"load_by_read_and_keep", median(loading) / median(keeping)}}
                         .dump());
  return 0;
}

}  // namespace
}  // namespace cartan

int main(int argc, char** argv) {
  try {
    return cartan::run(argc, argv);
  } catch (const cartan::Error& error) {
    std::fprintf(stderr, "load_folder_benchmark: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
