// Philox4x32-10, and what is derived from it.
#include "cartan/core/random.hpp"

#include <bit>
#include <cmath>
#include <numbers>

#include "cartan/core/error.hpp"
#include "cartan/core/hash.hpp"

namespace cartan {
namespace {

std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
std::uint32_t high(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }

double to_unit(std::uint32_t a, std::uint32_t b) {
  const std::uint64_t bits = (static_cast<std::uint64_t>(a) << 32) | b;
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace

PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {high(b) ^ counter[1] ^ key[0], low(b), high(a) ^ counter[3] ^ key[1], low(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

RandomStream::RandomStream(std::uint64_t seed, std::uint64_t stream)
    : key_{low(seed), high(seed)}, stream_(stream) {}

RandomStream::RandomStream(std::uint64_t seed, std::string_view name) : RandomStream(seed, hash_text(name)) {}

std::uint64_t RandomStream::bits(std::uint64_t position) const {
  const PhiloxCounter r = philox({low(position), high(position), low(stream_), high(stream_)}, key_);
  return (static_cast<std::uint64_t>(r[0]) << 32) | r[1];
}

double RandomStream::uniform(std::uint64_t position) const {
  return static_cast<double>(bits(position) >> 11) * 0x1p-53;
}

void RandomStream::fill_normal(std::uint64_t first, double mean, double deviation,
                               std::span<float> out) const {
  // One counter gives a pair of normals: elements 2 c and 2 c + 1.
  for (std::size_t i = 0; i < out.size();) {
    const std::uint64_t pair = (first + i) / 2;
    const PhiloxCounter r = philox({low(pair), high(pair), low(stream_), high(stream_)}, key_);
    const double radius = std::sqrt(-2.0 * std::log1p(-to_unit(r[0], r[1])));
    const double angle = 2.0 * std::numbers::pi * to_unit(r[2], r[3]);
    const double values[2] = {radius * std::cos(angle), radius * std::sin(angle)};
    for (std::uint64_t which = (first + i) % 2; which < 2 && i < out.size(); ++which, ++i)
      out[i] = static_cast<float>(mean + deviation * values[which]);
  }
}

Permutation::Permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t stream)
    : size_(size),
      half_bits_(1),
      key_{low(seed), high(seed)},
      stream_low_(low(stream)),
      stream_high_(high(stream)) {
  CARTAN_ASSERT(size > 0 && size <= (std::uint64_t{1} << 62));
  const unsigned bits = static_cast<unsigned>(std::bit_width(size - 1));
  if (bits > 2) half_bits_ = (bits + 1) / 2;
}

std::uint64_t Permutation::operator()(std::uint64_t index) const {
  CARTAN_DEBUG_ASSERT(index < size_);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  // The network permutes the next even power of two, at most four times as large: walking the cycle until
  // the value is in range restricts it to 0 ... size-1.
  do {
    std::uint64_t left = index >> half_bits_, right = index & mask;
    for (std::uint32_t round = 0; round < 6; ++round) {
      const PhiloxCounter r = philox({low(right), round, stream_low_, stream_high_}, key_);
      const std::uint64_t next = (left ^ r[0]) & mask;
      left = right;
      right = next;
    }
    index = (left << half_bits_) | right;
  } while (index >= size_);
  return index;
}

}  // namespace cartan
