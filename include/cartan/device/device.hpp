// A device: memory, streams and operations. `cpu` computes on the host, `cuda` on a GPU, `sim` computes
// nothing and counts: the same step run on `sim` predicts the memory and the FLOPs of a real one.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "cartan/device/memory.hpp"
#include "cartan/device/ops.hpp"
#include "cartan/device/stream.hpp"

namespace cartan::device {

enum class DeviceKind { cpu, cuda, sim };
/// Inverse of the key run.device. Throws ConfigError.
DeviceKind device_kind_from_name(std::string_view name);

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  /// For people: "cpu: Intel Xeon ..., 2 threads, AVX-512".
  virtual std::string description() const = 0;
  /// Threads of the host that this rank may keep busy.
  virtual int threads() const { return 1; }

  /// Uninitialised bytes, aligned for every operation. Throws EnvironmentError that names `label` and what is
  /// in use.
  virtual Buffer allocate(std::size_t size_bytes, MemoryKind kind, std::string_view label) = 0;
  /// As allocate, but outside of the device's main memory, which operations reach more slowly: in a nameless
  /// file of DeviceOptions::offload_dir on `cpu`, in host memory on `cuda`. Booked as offloaded. Throws
  /// IoError where the file system has no room.
  virtual Buffer allocate_offloaded(std::size_t size_bytes, std::string_view label) = 0;
  /// Whether what is offloaded should be copied into main memory for operations rather than worked on in
  /// place.
  virtual bool prefers_copies() const = 0;
  virtual MemoryLedger& ledger() = 0;

  /// Whether matrix products of 8-bit codes are possible.
  virtual bool multiplies_fp8() const { return true; }
  /// Side of a square product that keeps all of the device busy: what its speed is measured with.
  virtual Index large_product() const = 0;

  /// The stream that operations of the step run on.
  virtual Stream& compute_stream() = 0;
  /// Another stream, for communication or copies.
  virtual std::unique_ptr<Stream> make_stream(std::string_view name) = 0;
  virtual Ops& ops() = 0;

  /// Between places that this device allocated, offloaded or not, ordered on `stream`. They do not overlap.
  virtual void copy(void* destination, const void* source, std::size_t size_bytes, Stream& stream) = 0;
  /// From host memory to the device, ordered on `stream`. The source is free when the call returns.
  virtual void copy_in(void* destination, const void* host_source, std::size_t size_bytes,
                       Stream& stream) = 0;
  /// Back, ordered on `stream`. Blocks until the bytes are there; rethrows the failure of what came before.
  virtual void copy_out(void* host_destination, const void* source, std::size_t size_bytes,
                        Stream& stream) = 0;

  /// What the host enqueues from here to the matching end_range() has a name in profilers (NVTX on `cuda`).
  /// Ranges nest.
  virtual void begin_range(const std::string& name) = 0;
  virtual void end_range() noexcept = 0;
};

/// A range of a device for as long as it lives.
class Range {
 public:
  Range(Device& device, const std::string& name) : device_(device) { device.begin_range(name); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  ~Range() { device_.end_range(); }

 private:
  Device& device_;
};

struct DeviceOptions {
  int threads = 0;  ///< 0: the CPUs that this process may use, shared among the ranks of the node
  std::string offload_dir = ".";
  int local_rank = 0, local_ranks = 1;  ///< among the ranks of this node: which GPU is this rank's
  bool graphs = true;                   ///< repeated work goes to the GPU as CUDA graphs
};

/// The device `kind`. Throws EnvironmentError where this build or machine lacks it.
std::unique_ptr<Device> make_device(DeviceKind kind, const DeviceOptions& options);

/// What `sim` counted since it was made or reset.
struct SimCounts {
  double matmul_flops = 0;     ///< multiply-adds of products, two FLOPs each
  double attention_flops = 0;  ///< of attention, causal half only
};

/// The counting device. Addresses it hands out must not be followed.
class SimDevice : public Device {
 public:
  virtual const SimCounts& counts() const = 0;
  virtual DeviceKind imitated() const = 0;
};
/// Bytes that a device of this kind allocates for its own scratch are counted too.
std::unique_ptr<SimDevice> make_sim_device(DeviceKind imitated, const DeviceOptions& options);

}  // namespace cartan::device
