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

/// An array in fp32, bf16 or fp16.
class Data {
 public:
  Data(DType dtype, const Values& values) : dtype_(dtype), size_(static_cast<Index>(values.size())) {
    bytes_.resize(values.size() * size_of(dtype));
    for (std::size_t i = 0; i < values.size(); ++i) set(i, static_cast<float>(values[i]));
  }
  Data(DType dtype, Index size) : Data(dtype, Values(static_cast<std::size_t>(size), 0.0)) {}

  /// What the array holds, after rounding.
  Values values() const {
    Values result;
    for (std::size_t i = 0; i < static_cast<std::size_t>(size_); ++i) result.push_back(get(i));
    return result;
  }

  Matrix matrix(Index cols) { return {bytes_.data(), dtype_, size_ / cols, cols, cols}; }
  DType dtype() const { return dtype_; }
  Vector vector() { return {bytes_.data(), dtype_, size_}; }
  float* floats() { return reinterpret_cast<float*>(bytes_.data()); }
  bool same_bits(const Data& other) const { return bytes_ == other.bytes_; }

 private:
  void set(std::size_t i, float value) {
    if (dtype_ == DType::f32) {
      std::memcpy(bytes_.data() + 4 * i, &value, 4);
    } else {
      const std::uint16_t bits = dtype_ == DType::bf16 ? to_bfloat16(value).bits : to_float16(value).bits;
      std::memcpy(bytes_.data() + 2 * i, &bits, 2);
    }
  }
  double get(std::size_t i) const {
    if (dtype_ == DType::f32) {
      float value;
      std::memcpy(&value, bytes_.data() + 4 * i, 4);
      return static_cast<double>(value);
    }
    std::uint16_t bits;
    std::memcpy(&bits, bytes_.data() + 2 * i, 2);
    return static_cast<double>(dtype_ == DType::bf16 ? to_float(BFloat16{bits}) : to_float(Float16{bits}));
  }

  DType dtype_;
  Index size_;
  std::vector<std::byte> bytes_;
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
  std::vector<std::vector<float>> memory;
  std::vector<float*> pointers;
  Slots(int count, Index size) {
    for (int i = 0; i < std::max(1, count); ++i) memory.emplace_back(static_cast<std::size_t>(size), NAN);
    for (auto& slot : memory) pointers.push_back(slot.data());
  }
  GradientView view(const FoldPlan& plan) { return {pointers, 0, &plan}; }
  Values values() const { return {memory[0].begin(), memory[0].end()}; }
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
  return slots.memory[0];
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline Values as_values(const std::vector<float>& floats) { return {floats.begin(), floats.end()}; }

inline std::unique_ptr<Device> cpu(int threads) { return make_device(DeviceKind::cpu, {.threads = threads}); }

}  // namespace cartan::device::testing
