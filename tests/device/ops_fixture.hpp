// Numbers in the dtype under test beside their values in double, for comparing operations with the reference.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "cartan/core/bfloat16.hpp"
#include "cartan/core/canonical_tree.hpp"
#include "cartan/core/float16.hpp"
#include "cartan/core/random.hpp"
#include "cartan/device/device.hpp"
#include "device/cpu/reference.hpp"
#include "support/test_device.hpp"

namespace cartan::device::testing {

using reference::Values;

/// Normal numbers that depend on `name` only.
inline Values random_values(Index count, std::string_view name, double deviation = 1.0) {
  std::vector<float> floats(static_cast<std::size_t>(count));
  RandomStream(7, name).fill_normal(0, 0.0, deviation, floats);
  return {floats.begin(), floats.end()};
}

inline std::vector<std::int32_t> random_ids(Index count, Index bound, std::string_view name) {
  const RandomStream stream(7, name);
  std::vector<std::int32_t> ids;
  for (Index i = 0; i < count; ++i) {
    ids.push_back(static_cast<std::int32_t>(stream.bits(static_cast<std::uint64_t>(i)) %
                                            static_cast<std::uint64_t>(bound)));
  }
  return ids;
}

/// The types that activations and parameters may have.
inline constexpr DType kComputeTypes[] = {DType::f32, DType::bf16, DType::f16};

/// The device under test (support/test_device.hpp). A cpu stream that failed stays failed: tests that provoke
/// an error make a device of their own.
inline Device& device() {
  static const std::unique_ptr<Device> made = cartan::testing::make_test_device(2);
  return *made;
}
using cartan::testing::on_cpu;

/// Bytes of the device under test.
class Bytes {
 public:
  explicit Bytes(std::size_t size) : buffer_(device().allocate(size, MemoryKind::workspace, "a test")) {}
  explicit Bytes(const std::vector<std::byte>& host) : Bytes(host.size()) { set(host); }
  Bytes(const Bytes& other) : Bytes(other.host()) {}
  Bytes(Bytes&&) noexcept = default;
  Bytes& operator=(Bytes&&) noexcept = default;
  Bytes& operator=(const Bytes& other) { return *this = Bytes(other); }

  void set(const std::vector<std::byte>& host) { cartan::testing::upload(device(), buffer_.data(), host); }
  std::vector<std::byte> host() const {
    return cartan::testing::download<std::byte>(device(), buffer_.data(), buffer_.size_bytes());
  }
  void* data() const { return buffer_.data(); }

 private:
  Buffer buffer_;
};

/// Plain numbers on the device under test.
template <class T>
class Array {
 public:
  explicit Array(const std::vector<T>& host) : size_(host.size()), bytes_(as_bytes_of(host)) {}
  explicit Array(std::size_t size) : size_(size), bytes_(size * sizeof(T)) {}
  // NOLINTNEXTLINE(google-explicit-constructor): operations take spans
  operator std::span<const T>() const { return {data(), size_}; }
  operator std::span<T>() { return {data(), size_}; }  // NOLINT(google-explicit-constructor)
  T* data() const { return static_cast<T*>(bytes_.data()); }
  std::span<const T> part(Index begin, Index count) const {
    return std::span<const T>(*this).subspan(static_cast<std::size_t>(begin),
                                             static_cast<std::size_t>(count));
  }
  std::vector<T> host() const {
    const std::vector<std::byte> bytes = bytes_.host();
    std::vector<T> values(size_);
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

 private:
  static std::vector<std::byte> as_bytes_of(const std::vector<T>& host) {
    const auto bytes = std::as_bytes(std::span(host));
    return {bytes.begin(), bytes.end()};
  }
  std::size_t size_;
  Bytes bytes_;
};
using Ints = Array<std::int32_t>;

/// An array in fp32, bf16 or fp16 on the device under test.
class Data {
 public:
  Data(DType dtype, const Values& values)
      : dtype_(dtype), size_(static_cast<Index>(values.size())), bytes_(encoded(dtype, values)) {}
  Data(DType dtype, Index size) : Data(dtype, Values(static_cast<std::size_t>(size), 0.0)) {}

  /// What the array holds, after rounding.
  Values values() const {
    const std::vector<std::byte> bytes = bytes_.host();
    Values result;
    for (std::size_t i = 0; i < static_cast<std::size_t>(size_); ++i) result.push_back(decoded(bytes, i));
    return result;
  }
  /// Of fp32.
  std::vector<float> host_floats() const {
    const Values found = values();
    return {found.begin(), found.end()};
  }

  Matrix matrix(Index cols) { return {bytes_.data(), dtype_, size_ / cols, cols, cols}; }
  DType dtype() const { return dtype_; }
  Vector vector() { return {bytes_.data(), dtype_, size_}; }
  float* floats() { return static_cast<float*>(bytes_.data()); }
  bool same_bits(const Data& other) const { return bytes_.host() == other.bytes_.host(); }
  /// Other numbers, as many.
  void set(const Values& values) {
    ASSERT_EQ(static_cast<Index>(values.size()), size_);
    bytes_.set(encoded(dtype_, values));
  }

 private:
  static std::vector<std::byte> encoded(DType dtype, const Values& values) {
    std::vector<std::byte> bytes(values.size() * size_of(dtype));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto value = static_cast<float>(values[i]);
      if (dtype == DType::f32) {
        std::memcpy(bytes.data() + 4 * i, &value, 4);
      } else {
        const std::uint16_t bits = dtype == DType::bf16 ? to_bfloat16(value).bits : to_float16(value).bits;
        std::memcpy(bytes.data() + 2 * i, &bits, 2);
      }
    }
    return bytes;
  }
  double decoded(const std::vector<std::byte>& bytes, std::size_t i) const {
    if (dtype_ == DType::f32) {
      float value;
      std::memcpy(&value, bytes.data() + 4 * i, 4);
      return static_cast<double>(value);
    }
    std::uint16_t bits;
    std::memcpy(&bits, bytes.data() + 2 * i, 2);
    return static_cast<double>(dtype_ == DType::bf16 ? to_float(BFloat16{bits}) : to_float(Float16{bits}));
  }

  DType dtype_;
  Index size_;
  Bytes bytes_;
};

/// Half a unit in the last place, relative.
inline double epsilon(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-23;
}

/// Every element within `relative` of its expected value, or within `absolute`.
inline void expect_close(const Values& found, const Values& expected, double relative, double absolute) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], relative * std::abs(expected[i]) + absolute) << "element " << i;
  }
}

/// Slots for one parameter, filled with NaN: a slot that is read before it is written shows.
struct Slots {
  std::vector<Data> memory;
  std::vector<float*> pointers;
  Slots(int count, Index size) {
    for (int i = 0; i < std::max(1, count); ++i)
      memory.emplace_back(DType::f32, Values(static_cast<std::size_t>(size), NAN));
    for (Data& slot : memory) pointers.push_back(slot.floats());
  }
  GradientView view(const FoldPlan& plan) { return {pointers, 0, &plan}; }
  Values values() const { return memory[0].values(); }
  std::vector<float> floats(std::size_t slot = 0) const { return memory[slot].host_floats(); }
};

/// A matrix inside a larger array, `lead` elements after its start and with `gap` elements after each row:
/// what views into other tensors look like. Around the rows lies NaN.
class Embedded {
 public:
  Embedded(DType dtype, const Values& values, Index cols, Index lead, Index gap)
      : cols_(cols),
        lead_(lead),
        stride_(cols + gap),
        rows_(static_cast<Index>(values.size()) / cols),
        whole_(dtype, spread(values)) {}

  Matrix matrix() {
    const Vector all = whole_.vector();
    return {advance(all.data, all.dtype, lead_), all.dtype, rows_, cols_, stride_};
  }
  Values values() const {
    Values inside;
    const Values all = whole_.values();
    for (Index i = 0; i < rows_ * cols_; ++i) inside.push_back(all[place(i)]);
    return inside;
  }
  /// Whether what lies around the rows is as it was.
  bool alone() const {
    Index numbers = 0;
    for (const double value : whole_.values()) numbers += std::isnan(value) ? 0 : 1;
    return numbers <= rows_ * cols_;
  }

 private:
  std::size_t place(Index i) const {
    return static_cast<std::size_t>(lead_ + i / cols_ * stride_ + i % cols_);
  }
  Values spread(const Values& values) const {
    Values all(static_cast<std::size_t>(lead_ + rows_ * stride_), NAN);
    for (std::size_t i = 0; i < values.size(); ++i) all[place(static_cast<Index>(i))] = values[i];
    return all;
  }
  Index cols_, lead_, stride_, rows_;
  Data whole_;
};

/// Runs work(first, count, gradient view) over all `sequences` in micro-batches of `micro` and returns the
/// sum.
template <class Work>
std::vector<float> folded(Index sequences, Index micro, Index size, const Work& work) {
  const CanonicalTree tree(sequences);
  const std::vector<FoldPlan> plans = plan_folds(tree, 0, sequences, micro);
  Slots slots(slots_needed(plans), size);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const Index first = static_cast<Index>(i) * micro;
    work(first, std::min(micro, sequences - first), slots.view(plans[i]));
  }
  return slots.floats();
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline Values as_values(const std::vector<float>& floats) { return {floats.begin(), floats.end()}; }

/// A device of the kind under test; cpu with so many threads.
inline std::shared_ptr<Device> device_with(int threads) {
  if (on_cpu()) return cartan::testing::make_test_device(threads);
  return {&device(), [](Device*) {}};
}

inline std::unique_ptr<Device> cpu(int threads) { return make_device(DeviceKind::cpu, {.threads = threads}); }

}  // namespace cartan::device::testing
