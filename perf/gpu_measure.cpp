#include "gpu_measure.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "cartan/core/error.hpp"
#include "cartan/core/random.hpp"
#include "cartan/device/cuda_stream.hpp"

namespace cartan::perf {
namespace {

using device::MemoryKind;
using device::Ops;
using device::Stream;

/// What the table expects of an operation, on GPUs before and from compute capability 9.0.
struct Row {
  const char* operation;
  Bound bound;
  double low, high, low_90, high_90;
};

constexpr Row memory_row(const char* operation, double low, double high) {
  return {operation, Bound::memory, low, high, low, high};
}

// The heads of kernels/*.cu say why. Those of attention are shares of what mma.sync reaches: from 9.0 on that
// is about 60 % of what the instructions reach that cuBLASLt uses. A row that ends in 0 states nothing.
constexpr Row kExpectations[] = {
    memory_row("rmsnorm_forward", 0.80, 0.90),
    memory_row("rmsnorm_heads", 0.70, 0.70),
    memory_row("rmsnorm_backward", 0.80, 0.90),
    memory_row("rope", 0.80, 0.90),
    memory_row("swiglu_forward", 0.80, 0.90),
    memory_row("swiglu_backward", 0.80, 0.90),
    memory_row("embedding_forward", 0.80, 0.90),
    memory_row("embedding_backward", 0.85, 0.85),
    memory_row("cross_entropy", 0.85, 0.85),
    memory_row("cross_entropy_stats", 0.85, 0.85),
    memory_row("cross_entropy_finish", 0.85, 0.85),
    memory_row("sample", 0, 0),
    {"attention_forward_64", Bound::bf16_product, 0.33, 0.40, 0.20, 0.24},
    {"attention_forward_128", Bound::bf16_product, 0.50, 0.60, 0.30, 0.36},
    {"attention_backward_64", Bound::bf16_product, 0.30, 0.37, 0.18, 0.22},
    {"attention_backward_128", Bound::bf16_product, 0.45, 0.55, 0.27, 0.33},
    {"attention_fp32_forward", Bound::fp32_product, 0.30, 0.40, 0.30, 0.40},
    {"attention_fp32_backward", Bound::fp32_product, 0.30, 0.40, 0.30, 0.40},
    memory_row("attention_merge", 0.85, 0.90),
    {"linear_forward", Bound::bf16_product, 0, 0, 0, 0},
    {"linear_backward_input", Bound::bf16_product, 0, 0, 0, 0},
    {"linear_backward_weight", Bound::bf16_product, 0, 0, 0, 0},
    memory_row("adamw", 0.90, 0.90),
    memory_row("square_sums", 0.85, 0.90),
    memory_row("tree_sum", 0.85, 0.90),
    memory_row("sum_parts", 0.85, 0.90),
    memory_row("fold_columns", 0.85, 0.90),
    memory_row("find_nonfinite", 0.85, 0.90),
    memory_row("add", 0.85, 0.90),
    memory_row("fill_zero", 0, 0),
    memory_row("cast", 0.85, 0.90),
    memory_row("copy_of_odd_rows", 0.43, 0.45),
    memory_row("take_largest", 0.80, 0.80),
    memory_row("orthonormalise_rows", 0, 0),
    memory_row("scatter_add", 0, 0),
};

class TimedEvent {
 public:
  TimedEvent() { require(cudaEventCreateWithFlags(&event_, cudaEventDefault)); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  ~TimedEvent() { cudaEventDestroy(event_); }

  void record() { require(cudaEventRecord(event_, device::native_stream(gpu().compute_stream()))); }
  /// Waits for this event, which is recorded after `begin`.
  double seconds_since(const TimedEvent& begin) const {
    float milliseconds = 0;
    require(cudaEventSynchronize(event_));
    require(cudaEventElapsedTime(&milliseconds, begin.event_, event_));
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  static void require(cudaError_t state) {
    if (state != cudaSuccess)
      throw EnvironmentError("an event of the benchmark: {}", cudaGetErrorString(state));
  }
  cudaEvent_t event_ = nullptr;
};

double measured(Bound bound) {
  if (bound == Bound::memory) {
    const Index bytes = scale().small ? Index{1} << 16 : Index{1} << 30;
    const Array from(DType::f32, bytes / 4), to(DType::f32, bytes / 4);
    return 2.0 * static_cast<double>(bytes) / seconds_of([&](Ops&, Stream& stream) {
             gpu().copy(to.floats(), from.floats(), static_cast<std::size_t>(bytes), stream);
           });
  }
  const DType dtype = bound == Bound::bf16_product ? DType::bf16 : DType::f32;
  const Index side = scale().small ? 64 : bound == Bound::bf16_product ? 8192 : 4096;
  const Array x(dtype, side * side), w(dtype, side * side), y(dtype, side * side);
  return 2.0 * std::pow(static_cast<double>(side), 3) / seconds_of([&](Ops& ops, Stream& stream) {
           ops.linear_forward(x.matrix(side, side), w.matrix(side, side), {}, y.matrix(side, side), false,
                              {1, side}, stream);
         });
}

}  // namespace

Scale& scale() {
  static Scale chosen;
  return chosen;
}

device::Device& gpu() {
  static const auto made = device::make_device(device::DeviceKind::cuda, {});
  return *made;
}

Array::Array(DType dtype, Index size)
    : dtype_(dtype),
      size_(size),
      buffer_(gpu().allocate(static_cast<std::size_t>(size) * size_of(dtype), MemoryKind::activations,
                             "an operand of a benchmark")) {
  // Numbers of the host, repeated: zeros would cost less power, and be faster, than what training moves.
  constexpr Index kDifferent = Index{1} << 16;
  Stream& stream = gpu().compute_stream();
  const Index first = std::min(size, kDifferent);
  std::vector<float> host(static_cast<std::size_t>(first));
  RandomStream(1, "benchmark").fill_normal(0, 0.0, 0.5, host);
  const Numbers<float> seed(host);
  gpu().ops().copy({seed.span().data(), DType::f32, 1, first, first},
                   device::as_matrix(buffer_.data(), dtype, 1, first), stream);
  for (Index done = first; done < size; done += std::min(done, size - done))
    gpu().copy(device::advance(buffer_.data(), dtype, done), buffer_.data(),
               static_cast<std::size_t>(std::min(done, size - done)) * size_of(dtype), stream);
  stream.synchronize();
}

Gradient::Gradient(Index size, Index sequences)
    : slot_(DType::f32, size),
      pointer_(slot_.floats()),
      plan_(plan_folds(CanonicalTree(sequences), 0, sequences, sequences).front()) {}

double seconds_of(const std::function<void(device::Ops&, device::Stream&)>& work) {
  constexpr double kSample = 3e-3, kAll = 0.3;
  constexpr int kMostCalls = 1000, kMostSamples = 15, kFewestSamples = 5;
  Ops& ops = gpu().ops();
  Stream& stream = gpu().compute_stream();
  TimedEvent begin, end;
  const auto sample = [&](int calls) {
    begin.record();
    for (int i = 0; i < calls; ++i) work(ops, stream);
    end.record();
    return end.seconds_since(begin) / calls;
  };
  sample(1);  // chooses algorithms
  if (scale().small) return sample(1);
  const double once = std::max(sample(3), 1e-7);
  const int calls = std::clamp(static_cast<int>(kSample / once), 1, kMostCalls);
  const int samples = std::clamp(static_cast<int>(kAll / (once * calls)), kFewestSamples, kMostSamples);
  std::vector<double> seconds;
  for (int i = 0; i < samples; ++i) seconds.push_back(sample(calls));
  std::nth_element(seconds.begin(), seconds.begin() + samples / 2, seconds.end());
  return seconds[static_cast<std::size_t>(samples / 2)];
}

double limit(Bound bound) {
  static std::map<Bound, double> known;
  const auto found = known.find(bound);
  return found != known.end() ? found->second : known.emplace(bound, measured(bound)).first->second;
}

Expectation expectation(const std::string& operation) {
  static const bool is_new = [] {
    int number = 0;
    cudaDeviceProp properties{};
    if (cudaGetDevice(&number) != cudaSuccess || cudaGetDeviceProperties(&properties, number) != cudaSuccess)
      throw EnvironmentError("the GPU does not tell its properties");
    return properties.major >= 9;
  }();
  for (const Row& row : kExpectations)
    if (row.operation == operation)
      return {row.bound, is_new ? row.low_90 : row.low, is_new ? row.high_90 : row.high};
  throw InternalError("the table of perf/gpu_measure.cpp lacks {}", operation);
}

}  // namespace cartan::perf
