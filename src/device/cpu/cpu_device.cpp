// Host memory on large pages where it pays, an inline compute stream, and the operations.
#include "device/cpu/cpu_device.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "cartan/core/error.hpp"
#include "cartan/core/scratch_mapping.hpp"
#include "device/cpu/context.hpp"
#include "device/cpu/cpu_ops.hpp"
#include "device/cpu/machine.hpp"

namespace cartan::device::cpu {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kLargePage = std::size_t{2} << 20;

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

HostStream& host_stream(Stream& stream) {
  auto* const host = dynamic_cast<HostStream*>(&stream);
  if (host == nullptr) throw InternalError("stream {} does not belong to the cpu device", stream.name());
  return *host;
}

class CpuDevice : public Device {
 public:
  CpuDevice(int threads, std::string offload_dir, Gemm::Bf16Products bf16_products)
      : threads_(threads),
        offload_dir_(std::move(offload_dir)),
        compute_stream_(make_inline_stream("compute")),
        scratch_(
            allocate(device_scratch_bytes(threads), MemoryKind::workspace, "scratch of the cpu threads")),
        ops_(threads, scratch_.as<std::byte>(), *compute_stream_, bf16_products) {}

  DeviceKind kind() const override { return DeviceKind::cpu; }

  std::string description() const override {
    return fmt::format("cpu: {}, {} thread{}, {}", cpu_model(), threads_, threads_ == 1 ? "" : "s",
                       instruction_set());
  }

  int threads() const override { return threads_; }

  Buffer allocate(std::size_t size_bytes, MemoryKind kind, std::string_view label) override {
    if (size_bytes == 0) return {nullptr, 0, kind, ledger_, nullptr};
    const std::size_t alignment = size_bytes >= kLargePage ? kLargePage : kCacheLine;
    // aligned_alloc wants whole multiples; a request too large to round up fails as it is.
    const bool huge = size_bytes > SIZE_MAX / 2;
    void* const data = huge ? nullptr : std::aligned_alloc(alignment, round_up(size_bytes, alignment));
    if (data == nullptr) {
      throw EnvironmentError(
          "cannot allocate {:.3f} GiB of host memory for {} ({}): {:.3f} GiB are in use; use more "
          "ranks or a smaller batch.micro",
          static_cast<double>(size_bytes) / (1 << 30), label, name_of(kind),
          static_cast<double>(ledger_.current().total()) / (1 << 30));
    }
    // Advice only: without large pages everything works, a little slower.
    if (alignment == kLargePage) madvise(data, round_up(size_bytes, alignment), MADV_HUGEPAGE);
    return {data, size_bytes, kind, ledger_, [](void* p) { std::free(p); }};
  }

  Buffer allocate_offloaded(std::size_t size_bytes, std::string_view label) override {
    if (size_bytes == 0) return {nullptr, 0, MemoryKind::offloaded, ledger_, nullptr};
    try {
      return {map_scratch(offload_dir_, size_bytes), size_bytes, MemoryKind::offloaded, ledger_,
              [size_bytes](void* p) { unmap_scratch(p, size_bytes); }};
    } catch (const IoError& error) {
      throw IoError("offloading {}: {}", label, error.what());
    }
  }

  bool prefers_copies() const override { return false; }
  MemoryLedger& ledger() override { return ledger_; }
  Index large_product() const override { return 512; }
  Stream& compute_stream() override { return *compute_stream_; }
  std::unique_ptr<Stream> make_stream(std::string_view name) override {
    return make_threaded_stream(std::string(name));
  }
  void begin_range(const std::string&) override {}
  void end_range() noexcept override {}
  Ops& ops() override { return ops_; }

  void copy(void* destination, const void* source, std::size_t size_bytes, Stream& stream) override {
    submit_copy(destination, source, size_bytes, stream);
  }
  void copy_in(void* destination, const void* host_source, std::size_t size_bytes, Stream& stream) override {
    submit_copy(destination, host_source, size_bytes, stream).wait();
  }
  void copy_out(void* host_destination, const void* source, std::size_t size_bytes, Stream& stream) override {
    submit_copy(host_destination, source, size_bytes, stream).wait();
  }

 private:
  static Event submit_copy(void* destination, const void* source, std::size_t size_bytes, Stream& stream) {
    return host_stream(stream).submit([=] {
      if (size_bytes > 0) std::memcpy(destination, source, size_bytes);
    });
  }

  int threads_;
  std::string offload_dir_;
  MemoryLedger ledger_;
  std::unique_ptr<HostStream> compute_stream_;
  Buffer scratch_;
  CpuOps ops_;
};

}  // namespace

std::size_t device_scratch_bytes(int threads) {
  return static_cast<std::size_t>(threads + 1) * kScratchBytes;
}

std::unique_ptr<Device> make_cpu_device(const DeviceOptions& options, Gemm::Bf16Products bf16_products) {
  if (options.threads < 0)
    throw ConfigError("a device with {} threads: use 0 (all) or more", options.threads);
  return std::make_unique<CpuDevice>(options.threads == 0 ? default_threads() : options.threads,
                                     options.offload_dir, bf16_products);
}

std::unique_ptr<Device> make_cpu_device(const DeviceOptions& options) {
  return make_cpu_device(options,
                         prefers_bf16_products() ? Gemm::Bf16Products::native : Gemm::Bf16Products::as_fp32);
}

}  // namespace cartan::device::cpu
