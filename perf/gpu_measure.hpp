// What the benchmark of the cuda device measures with: operands on the device, times by events, the machine's
// limits, and the share of a limit that is expected of each operation.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cartan/core/canonical_tree.hpp"
#include "cartan/device/device.hpp"

namespace cartan::perf {

/// How large and how long: `small` is for the emulated device, where only the code is of interest.
struct Scale {
  bool small = false;
};
Scale& scale();

/// The GPU that is measured.
device::Device& gpu();

/// Small normal numbers on the device.
class Array {
 public:
  Array(DType dtype, Index size);
  device::Matrix matrix(Index rows, Index cols) const {
    return device::as_matrix(buffer_.data(), dtype_, rows, cols);
  }
  device::Vector vector() const { return {buffer_.data(), dtype_, size_}; }
  float* floats() const { return buffer_.as<float>(); }

 private:
  DType dtype_;
  Index size_;
  device::Buffer buffer_;
};

/// Plain numbers on the device.
template <class T>
class Numbers {
 public:
  explicit Numbers(const std::vector<T>& host) : Numbers(host.size()) {
    gpu().copy_in(buffer_.data(), host.data(), host.size() * sizeof(T), gpu().compute_stream());
    gpu().compute_stream().synchronize();
  }
  explicit Numbers(std::size_t size)
      : size_(size),
        buffer_(gpu().allocate(size * sizeof(T), device::MemoryKind::workspace, "numbers of a benchmark")) {}
  std::span<T> span() const { return {buffer_.as<T>(), size_}; }

 private:
  std::size_t size_;
  device::Buffer buffer_;
};

/// The slot of a parameter's gradient that a micro-batch of so many sequences, a power of two, fills.
class Gradient {
 public:
  Gradient(Index size, Index sequences);
  device::GradientView view() { return {{&pointer_, 1}, 0, &plan_}; }

 private:
  Array slot_;
  float* pointer_;
  FoldPlan plan_;
};

/// Seconds of one call: after a warm-up, the median over samples, each of as many calls as last some
/// milliseconds, between two events on the compute stream.
double seconds_of(const std::function<void(device::Ops&, device::Stream&)>& work);

/// What bounds an operation.
enum class Bound { memory, bf16_product, fp32_product };

/// Measured once, when first asked for: bytes/s (read and written) of a copy of 1 GiB inside the device, or
/// FLOP/s of cuBLASLt's product of square matrices of 8192 (fp32: 4096).
double limit(Bound bound);

/// An operation's bound, and the share of it that the head of its file in kernels/ expects.
struct Expectation {
  Bound bound = Bound::memory;
  double low = 0, high = 0;  ///< 0: nothing is stated
};
/// Throws InternalError for an operation that the table lacks.
Expectation expectation(const std::string& operation);

}  // namespace cartan::perf
