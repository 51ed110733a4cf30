// UTF-8 that arrives in pieces: tokens may end in the middle of a character, and a model may write bytes
// that are no characters at all. What people and JSON see is always valid.
#pragma once

#include <string>
#include <string_view>

namespace cartan::data {

/// Takes the whole characters from the front of `pending` and returns them; the beginning of a character
/// that is not complete stays in `pending`, unless `finish` is set. Bytes that cannot belong to a character
/// become U+FFFD, one for each maximal piece (Unicode 15, section 3.9, "U+FFFD Substitution").
std::string take_utf8(std::string& pending, bool finish);

/// Whether all of `text` is well-formed.
bool is_valid_utf8(std::string_view text);

/// `text` with every piece that is not UTF-8 replaced by U+FFFD.
std::string valid_utf8(std::string_view text);

}  // namespace cartan::data
