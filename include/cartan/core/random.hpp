// Counter-based random numbers: a value is a function of (seed, stream, position) alone, so that it
// does not depend on ranks, threads or the order of calls.
// Source: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox4x32-10).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace cartan {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

/// Ten rounds of Philox4x32.
PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key);

/// A random sequence named by (seed, stream). Copies are cheap; nothing advances.
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::uint64_t stream);
  /// The stream of a name, e.g. of a parameter: hash(name).
  RandomStream(std::uint64_t seed, std::string_view name);

  std::uint64_t bits(std::uint64_t position) const;
  /// Uniform in [0, 1), 53 bits.
  double uniform(std::uint64_t position) const;
  /// Elements first, first+1, ... of an endless sequence of normals (Box-Muller, in double).
  void fill_normal(std::uint64_t first, double mean, double deviation, std::span<float> out) const;

 private:
  PhiloxKey key_;
  std::uint64_t stream_;
};

/// A permutation of 0 ... size-1 that is computed, not stored: a keyed Feistel network with cycle
/// walking, O(1) memory and time. Depends on (seed, stream, size) only.
class Permutation {
 public:
  Permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t stream);
  std::uint64_t size() const { return size_; }
  std::uint64_t operator()(std::uint64_t index) const;

 private:
  std::uint64_t size_;
  unsigned half_bits_;
  PhiloxKey key_;
  std::uint32_t stream_low_, stream_high_;
};

}  // namespace cartan
