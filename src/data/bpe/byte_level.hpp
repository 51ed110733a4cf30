// GPT-2's mapping between bytes and the characters that stand for them in a vocabulary.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace cartan::data::bpe {

/// The character that stands for a byte, in UTF-8: itself for what can be printed, else U+0100 and up.
std::string byte_level_character(unsigned char byte);

/// The bytes that a content stands for; nothing if it has a character that stands for none.
std::optional<std::string> byte_level_bytes(std::string_view content);

}  // namespace cartan::data::bpe
