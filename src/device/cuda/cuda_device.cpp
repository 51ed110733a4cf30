#include "device/cuda/cuda_device.hpp"

#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <cstdlib>

#include "cartan/core/error.hpp"
#include "cartan/device/cuda_info.hpp"
#include "cartan/device/cuda_stream.hpp"
#include "device/cuda/cuda_ops.hpp"
#include "device/cuda/errors.hpp"
#include "device/cuda/graph_ops.hpp"
#include "device/cuda/scratch_bytes.hpp"
#include "device/cuda/staging.hpp"
#include "device/cuda/stream.hpp"

namespace cartan::device::cuda {
namespace {

// Kernels use bf16 tensor-core instructions and asynchronous copies: Ampere.
constexpr int kOldestMajor = 8;

/// The number of this rank's GPU among those that it may use. Makes it the process's device.
int choose_gpu(const DeviceOptions& options) {
  // Numbers follow the slots, as in nvidia-smi, unless somebody chose otherwise.
  setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 0);
  int gpus = 0;
  const cudaError_t state = cudaGetDeviceCount(&gpus);
  if (state == cudaErrorInsufficientDriver)
    throw EnvironmentError(
        "run.device = cuda: this machine has no NVIDIA driver, or one that is older than CUDA {}.{} needs; "
        "use "
        "run.device = cpu or another node",
        CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  if (state == cudaErrorNoDevice || (state == cudaSuccess && gpus == 0)) {
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    throw EnvironmentError(
        "run.device = cuda: no GPU is visible{}; ask the scheduler for one a rank (Slurm: --gpus-per-node) "
        "or use "
        "run.device = cpu",
        visible == nullptr ? "" : fmt::format(" (CUDA_VISIBLE_DEVICES is \"{}\")", visible));
  }
  check(state, "cudaGetDeviceCount");
  // A launcher may show each rank its own GPU only. Else all ranks of a node find out that they are too many.
  const int number = gpus == 1 ? 0 : options.local_rank;
  if (number >= gpus || (gpus > 1 && options.local_ranks > gpus))
    throw EnvironmentError(
        "run.device = cuda: {} ranks on this node, but {} GPUs are visible: start one rank a GPU",
        options.local_ranks, gpus);
  check(cudaSetDevice(number), "cudaSetDevice");
  return number;
}

std::string address_of(const cudaDeviceProp& properties) {
  return fmt::format("{:04x}:{:02x}:{:02x}", properties.pciDomainID, properties.pciBusID,
                     properties.pciDeviceID);
}

class CudaDevice : public Device {
 public:
  explicit CudaDevice(const DeviceOptions& options)
      : number_(choose_gpu(options)),
        properties_(properties_of(number_)),
        events_(std::make_shared<EventPool>()),
        compute_stream_("compute", events_) {
    cudaMemPool_t pool = nullptr;
    check(cudaDeviceGetDefaultMemPool(&pool, number_), "cudaDeviceGetDefaultMemPool");
    // What is given back stays with the process.
    std::uint64_t keep = UINT64_MAX;
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "cudaMemPoolSetAttribute");
    scratch_ = allocate(kDeviceScratchBytes, MemoryKind::workspace, "scratch of the device");
    ops_ = std::make_unique<CudaOps>(scratch_.as<std::byte>(), compute_stream_, staging_);
    if (options.graphs) graph_ops_ = make_graph_ops(*ops_, compute_stream_);
  }

  DeviceKind kind() const override { return DeviceKind::cuda; }

  std::string description() const override {
    return fmt::format("cuda: {}, {:.1f} GiB, compute capability {}.{}, GPU {} at {}", properties_.name,
                       static_cast<double>(properties_.totalGlobalMem) / (1 << 30), properties_.major,
                       properties_.minor, number_, address_of(properties_));
  }

  Buffer allocate(std::size_t size_bytes, MemoryKind kind, std::string_view label) override {
    if (size_bytes == 0) return {nullptr, 0, kind, ledger_, nullptr};
    void* data = nullptr;
    const cudaError_t state = cudaMallocAsync(&data, size_bytes, compute_stream_.native());
    if (state == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // out of memory does not stick
      throw EnvironmentError(
          "cannot allocate {:.3f} GiB of GPU memory for {} ({}): {:.3f} GiB are in use of {:.1f}; use more "
          "ranks, a "
          "smaller batch.micro, a higher zero.stage or recompute.policy",
          gib(size_bytes), label, name_of(kind), gib(ledger_.current().total()),
          gib(properties_.totalGlobalMem));
    }
    check(state, "cudaMallocAsync");
    // Any stream may use it from now on.
    compute_stream_.synchronize();
    return {data, size_bytes, kind, ledger_, [this](void* p) {
              finish_gpu(compute_stream_);
              cudaFreeAsync(p, compute_stream_.native());
            }};
  }

  Buffer allocate_offloaded(std::size_t size_bytes, std::string_view label) override {
    if (size_bytes == 0) return {nullptr, 0, MemoryKind::offloaded, ledger_, nullptr};
    void* data = nullptr;
    const cudaError_t state = cudaMallocHost(&data, size_bytes);
    if (state == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw EnvironmentError(
          "offloading {}: cannot pin {:.3f} GiB of host memory; ask for more memory or use zero.offload = "
          "none",
          label, gib(size_bytes));
    }
    check(state, "cudaMallocHost");
    return {data, size_bytes, MemoryKind::offloaded, ledger_, [this](void* p) {
              finish_gpu(compute_stream_);
              cudaFreeHost(p);
            }};
  }

  bool prefers_copies() const override { return true; }
  /// Ada and later have tensor cores for it.
  bool multiplies_fp8() const override { return 10 * properties_.major + properties_.minor >= 89; }
  MemoryLedger& ledger() override { return ledger_; }
  /// Some tiles of 128 x 128 for each multiprocessor.
  Index large_product() const override {
    Index side = 128;
    while (side * side < Index{8} * properties_.multiProcessorCount * 128 * 128) side *= 2;
    return side;
  }
  Stream& compute_stream() override { return compute_stream_; }
  std::unique_ptr<Stream> make_stream(std::string_view name) override {
    return std::make_unique<CudaStream>(std::string(name), events_);
  }
  void begin_range(const std::string& name) override { nvtxRangePushA(name.c_str()); }
  void end_range() noexcept override { nvtxRangePop(); }
  Ops& ops() override { return graph_ops_ ? *graph_ops_ : *ops_; }

  void copy(void* destination, const void* source, std::size_t size_bytes, Stream& stream) override {
    if (size_bytes == 0) return;
    check(cudaMemcpyAsync(destination, source, size_bytes, cudaMemcpyDefault, cuda_stream(stream).native()),
          "cudaMemcpyAsync");
  }
  void copy_in(void* destination, const void* host_source, std::size_t size_bytes, Stream& stream) override {
    staging_.copy_in(destination, host_source, size_bytes, cuda_stream(stream).native());
  }
  void copy_out(void* host_destination, const void* source, std::size_t size_bytes, Stream& stream) override {
    staging_.copy_out(host_destination, source, size_bytes, cuda_stream(stream).native());
  }

 private:
  static double gib(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 30); }
  static cudaDeviceProp properties_of(int number) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, number), "cudaGetDeviceProperties");
    if (properties.major < kOldestMajor)
      throw EnvironmentError(
          "run.device = cuda: {} has compute capability {}.{}, cartan's kernels need {}.0 or newer (A100, "
          "H100, ...)",
          properties.name, properties.major, properties.minor, kOldestMajor);
    return properties;
  }

  int number_;
  cudaDeviceProp properties_;
  MemoryLedger ledger_;
  std::shared_ptr<EventPool> events_;
  CudaStream compute_stream_;
  Staging staging_;
  Buffer scratch_;
  std::unique_ptr<Ops> ops_, graph_ops_;
};

}  // namespace

std::unique_ptr<Device> make_cuda_device(const DeviceOptions& options) {
  return std::make_unique<CudaDevice>(options);
}

}  // namespace cartan::device::cuda

namespace cartan::device {

std::string cuda_version() { return fmt::format("{}.{}", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10); }

std::string gpu_address() {
  int number = 0;
  cuda::check(cudaGetDevice(&number), "cudaGetDevice");
  cudaDeviceProp properties{};
  cuda::check(cudaGetDeviceProperties(&properties, number), "cudaGetDeviceProperties");
  return cuda::address_of(properties);
}

}  // namespace cartan::device
