// Hashes that are stored in files: xxHash's XXH3 with 64 bits, fast enough for every byte of a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace cartan {

std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed = 0);
std::uint64_t hash_text(std::string_view text, std::uint64_t seed = 0);

}  // namespace cartan
