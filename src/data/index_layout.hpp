// Constants of the layouts of .idx and .mask that reader and writer share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cartan/core/types.hpp"

namespace cartan::data {

inline constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
inline constexpr std::uint64_t kVersion = 1;
inline constexpr Index kHeaderBytes = 9 + 8 + 1 + 8 + 8;

inline constexpr std::string_view kMaskMagic{"CARTMASK", 8};
inline constexpr std::uint64_t kMaskVersion = 1;
inline constexpr Index kMaskHeaderBytes = 8 + 8;

/// `path` without the suffix .bin or .idx.
std::string dataset_prefix(std::string_view path);

}  // namespace cartan::data
