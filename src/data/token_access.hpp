// Numbers in the mapped files of a dataset.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "cartan/data/indexed_dataset.hpp"

namespace cartan::data {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

inline constexpr std::string_view kRemedy = "copy the file again or make it again with cartan tokenize";

/// The arrays begin at odd addresses, hence memcpy.
template <class T>
T load(const std::byte* at, Index element = 0) {
  T value;
  std::memcpy(&value, at + element * static_cast<Index>(sizeof(T)), sizeof value);
  return value;
}

/// Calls `visit` with a zero of the C++ type.
template <class Visitor>
auto with_type(TokenType type, Visitor&& visit) {
  switch (type) {
    case TokenType::u8:
      return visit(std::uint8_t{});
    case TokenType::i8:
      return visit(std::int8_t{});
    case TokenType::i16:
      return visit(std::int16_t{});
    case TokenType::i32:
      return visit(std::int32_t{});
    case TokenType::i64:
      return visit(std::int64_t{});
    case TokenType::u32:
      return visit(std::uint32_t{});
    case TokenType::u16:
      break;
  }
  return visit(std::uint16_t{});
}

}  // namespace cartan::data
