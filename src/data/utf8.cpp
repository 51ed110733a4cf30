// A decoder of one piece at a time after the table of well-formed byte sequences (Unicode 15, table 3-7).
#include "cartan/data/utf8.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace cartan::data {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

/// What stands at the front of a non-empty text.
struct Piece {
  enum class Kind { character, invalid, cut } kind;
  std::size_t length;
};

Piece first_piece(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Piece::Kind::character, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Piece::Kind::invalid, 1};
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Piece::Kind::cut, i};
    // Only the second byte has narrower limits: no overlong forms, no surrogates, nothing above U+10FFFF.
    unsigned char low = 0x80, high = 0xBF;
    if (i == 1 && lead == 0xE0) low = 0xA0;
    if (i == 1 && lead == 0xED) high = 0x9F;
    if (i == 1 && lead == 0xF0) low = 0x90;
    if (i == 1 && lead == 0xF4) high = 0x8F;
    if (byte(i) < low || byte(i) > high) return {Piece::Kind::invalid, i};
  }
  return {Piece::Kind::character, length};
}

}  // namespace

std::string take_utf8(std::string& pending, bool finish) {
  std::string out;
  std::string_view rest = pending;
  while (!rest.empty()) {
    const Piece piece = first_piece(rest);
    if (piece.kind == Piece::Kind::cut && !finish) break;
    out += piece.kind == Piece::Kind::character ? rest.substr(0, piece.length) : kReplacement;
    rest.remove_prefix(piece.length);
  }
  pending.erase(0, pending.size() - rest.size());
  return out;
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    std::uint64_t eight = 0;
    if (text.size() >= sizeof eight) {
      std::memcpy(&eight, text.data(), sizeof eight);
      if ((eight & 0x8080808080808080U) == 0) {
        text.remove_prefix(sizeof eight);
        continue;
      }
    }
    const Piece piece = first_piece(text);
    if (piece.kind != Piece::Kind::character) return false;
    text.remove_prefix(piece.length);
  }
  return true;
}

std::string valid_utf8(std::string_view text) {
  std::string pending(text);
  return take_utf8(pending, true);
}

}  // namespace cartan::data
