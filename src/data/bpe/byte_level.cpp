#include "byte_level.hpp"

#include <array>

#include "unicode.hpp"

namespace cartan::data::bpe {
namespace {

struct Tables {
  std::array<char32_t, 256> characters{};
  std::array<int, 0x200> bytes{};  ///< -1: none

  Tables() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool is_printable =
          (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      characters[byte] = is_printable ? byte : next++;
      bytes[characters[byte]] = static_cast<int>(byte);
    }
  }
};
const Tables& tables() {
  static const Tables tables;
  return tables;
}

}  // namespace

std::string byte_level_character(unsigned char byte) {
  std::string text;
  append_utf8(text, tables().characters[byte]);
  return text;
}

std::optional<std::string> byte_level_bytes(std::string_view content) {
  std::string out;
  for (std::size_t i = 0; i < content.size();) {
    const CodePoint code = code_point(content, i);
    const int byte = code.value < tables().bytes.size() ? tables().bytes[code.value] : -1;
    if (byte < 0) return std::nullopt;
    out += static_cast<char>(byte);
    i += code.length;
  }
  return out;
}

}  // namespace cartan::data::bpe
