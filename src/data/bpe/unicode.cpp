// Properties and decompositions come from utf8proc. Reordering is done here: utf8proc's is an insertion sort,
// quadratic for a long run of combining marks.
#include "unicode.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "cartan/core/error.hpp"

namespace cartan::data::bpe {
namespace {

constexpr char32_t kCodes = 0x110000;

utf8proc_category_t category(char32_t code) { return utf8proc_category(static_cast<utf8proc_int32_t>(code)); }
bool is_between(utf8proc_category_t value, utf8proc_category_t low, utf8proc_category_t high) {
  return value >= low && value <= high;
}
/// Hugging Face's library normalizes by the tables of Unicode 9: characters that were added later combine
/// with none and have no decomposition there. These are the ranges, up to Unicode 16, in which some would
/// have.
struct Range {
  std::int32_t first, last;
};
constexpr std::array kLaterThanUnicode9{
    Range{0x7FD, 0x7FD},     Range{0x870, 0x89F},     Range{0x8CA, 0x8D3},     Range{0x9FE, 0x9FE},
    Range{0xC3C, 0xC3C},     Range{0xD3B, 0xD3C},     Range{0xEBA, 0xEBA},     Range{0x1715, 0x1715},
    Range{0x1ABF, 0x1AFF},   Range{0x1DF6, 0x1DFA},   Range{0x32FF, 0x32FF},   Range{0xA7F1, 0xA7F4},
    Range{0xA82C, 0xA82C},   Range{0xAB69, 0xAB69},   Range{0x10780, 0x107BF}, Range{0x10D00, 0x10D8F},
    Range{0x10E80, 0x10FFF}, Range{0x11070, 0x11070}, Range{0x1133B, 0x1133B}, Range{0x11380, 0x113FF},
    Range{0x1145E, 0x1145E}, Range{0x11800, 0x1184F}, Range{0x11900, 0x11AAF}, Range{0x11D00, 0x11FFF},
    Range{0x16D40, 0x16D7F}, Range{0x16FF0, 0x16FF1}, Range{0x1CC00, 0x1CEBF}, Range{0x1E030, 0x1E08F},
    Range{0x1E100, 0x1E14F}, Range{0x1E290, 0x1E2FF}, Range{0x1E4D0, 0x1E5FF}, Range{0x1F16C, 0x1F16C},
    Range{0x1FBF0, 0x1FBF9},
};
bool is_later(std::int32_t code) {
  const auto* range = std::lower_bound(kLaterThanUnicode9.begin(), kLaterThanUnicode9.end(), code,
                                       [](const Range& r, std::int32_t c) { return r.last < c; });
  return range != kLaterThanUnicode9.end() && range->first <= code;
}

int combining_class(std::int32_t code) {
  const int value = utf8proc_get_property(code)->combining_class;
  return value != 0 && is_later(code) ? 0 : value;
}

/// Composes in place. Later characters are left out: utf8proc would join what stands around them.
void compose_all(std::vector<std::int32_t>& codes) {
  std::size_t done = 0, kept = 0;
  while (done < codes.size()) {
    const auto begin = codes.begin() + static_cast<std::ptrdiff_t>(done);
    const auto end = std::find_if(begin, codes.end(), is_later);
    const auto count = utf8proc_normalize_utf32(
        codes.data() + done, end - begin, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    CARTAN_ASSERT(count >= 0);
    std::copy(begin, begin + count, codes.begin() + static_cast<std::ptrdiff_t>(kept));
    kept += static_cast<std::size_t>(count);
    done = static_cast<std::size_t>(end - codes.begin());
    if (done < codes.size()) codes[kept++] = codes[done++];
  }
  codes.resize(kept);
}

}  // namespace

CodePoint code_point(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[at + i]));
  };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

void append_utf8(std::string& text, char32_t code) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

bool is_white_space(char32_t code) {
  if (code < 0x80) return code == ' ' || (code >= 0x09 && code <= 0x0D);
  return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) ||
         code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_numeric(char32_t code) {
  return is_between(category(code), UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
}
bool is_letter(char32_t code) {
  return is_between(category(code), UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO);
}
bool is_mark(char32_t code) { return is_between(category(code), UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME); }
bool is_punctuation(char32_t code) {
  if (code < 0x80) return (code > 0x20 && code < 0x7F) && !is_letter(code) && !is_numeric(code);
  return is_between(category(code), UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO);
}
bool is_word(char32_t code) {
  const utf8proc_category_t c = category(code);
  return is_letter(code) || is_mark(code) || c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL ||
         c == UTF8PROC_CATEGORY_PC || (code >= 0x24B6 && code <= 0x24E9) || code == 0x200C || code == 0x200D;
}

void append_lower_case(std::string& text, char32_t code) {
  if (code == 0x130) {
    text += "i\xCC\x87";
  } else {
    append_utf8(text, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
  }
}

NormalForm::NormalForm(bool compatibility, bool compose)
    : options_(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatibility ? UTF8PROC_COMPAT : 0)),
      compose_(compose),
      inert_(kCodes / 64) {
  std::vector<std::int32_t> codes;
  std::vector<char32_t> followers;  // characters that a composition can add to the one before
  for (char32_t code = 0; code < kCodes; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(code));
    const bool is_hangul = code >= 0xAC00 && code <= 0xD7A3;  // decomposed by rule, not by table
    if (is_later(static_cast<std::int32_t>(code)) ||
        (property->combining_class == 0 && (is_hangul ? compose : property->decomp_seqindex == UINT16_MAX))) {
      inert_[code / 64] |= std::uint64_t{1} << (code % 64);
      continue;
    }
    const auto single = static_cast<std::int32_t>(code);
    codes.assign(1, single);
    normalize(codes);
    bool inert = codes.size() == 1 && codes[0] == single && combining_class(single) == 0;
    if (inert && compose_) {
      std::array<std::int32_t, 32> parts{};
      const auto count = utf8proc_decompose_char(
          single, parts.data(), parts.size(),
          static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), nullptr);
      if (count > 1) followers.push_back(static_cast<char32_t>(parts[static_cast<std::size_t>(count) - 1]));
    }
    if (inert) inert_[code / 64] |= std::uint64_t{1} << (code % 64);
  }
  const auto exclude = [&](char32_t code) { inert_[code / 64] &= ~(std::uint64_t{1} << (code % 64)); };
  if (!compose_) return;
  for (const char32_t code : followers) exclude(code);
  for (char32_t jamo = 0x1161; jamo <= 0x1175; ++jamo) exclude(jamo);
  for (char32_t jamo = 0x11A7; jamo <= 0x11C2; ++jamo) exclude(jamo);
}

void NormalForm::normalize(std::vector<std::int32_t>& codes) const {
  std::vector<std::int32_t> out;
  out.reserve(codes.size() + 16);
  std::array<std::int32_t, 32> parts{};  // the longest decomposition has 18
  for (const std::int32_t code : codes) {
    if (is_later(code)) {
      out.push_back(code);
      continue;
    }
    const auto count = utf8proc_decompose_char(code, parts.data(), parts.size(),
                                               static_cast<utf8proc_option_t>(options_), nullptr);
    CARTAN_ASSERT(count >= 0 && count <= static_cast<std::ptrdiff_t>(parts.size()));
    out.insert(out.end(), parts.begin(), parts.begin() + count);
  }
  for (auto begin = out.begin(); begin != out.end();) {
    if (combining_class(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end =
        std::find_if(begin, out.end(), [](std::int32_t code) { return combining_class(code) == 0; });
    std::stable_sort(begin, end,
                     [](std::int32_t a, std::int32_t b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
  if (compose_) compose_all(out);
  codes.swap(out);
}

void NormalForm::append_normal(std::string_view span, std::string& out) const {
  std::vector<std::int32_t> codes;
  for (std::size_t i = 0; i < span.size();) {
    const CodePoint code = code_point(span, i);
    codes.push_back(static_cast<std::int32_t>(code.value));
    i += code.length;
  }
  normalize(codes);
  for (const std::int32_t code : codes) append_utf8(out, static_cast<char32_t>(code));
}

std::size_t NormalForm::find_work(std::string_view text, std::size_t from, std::size_t& anchor) const {
  for (std::size_t i = from; i < text.size();) {
    std::uint64_t eight = 0;
    if (i + sizeof eight <= text.size()) {
      std::memcpy(&eight, text.data() + i, sizeof eight);
      if ((eight & 0x8080808080808080U) == 0) {  // ASCII is inert in every form
        i += sizeof eight;
        anchor = i - 1;
        continue;
      }
    }
    const CodePoint code = code_point(text, i);
    if (!is_inert(code.value)) return i;
    anchor = i;
    i += code.length;
  }
  return text.size();
}

bool NormalForm::keeps(std::string_view text) const {
  std::size_t anchor = 0;
  return find_work(text, 0, anchor) == text.size();
}

void NormalForm::apply(std::string& text) const {
  const std::string_view in = text;
  std::string out;
  std::size_t copied = 0;  // what lies before is in `out`
  while (true) {
    std::size_t anchor = copied;  // the last inert character: text can be cut before it
    const std::size_t work = find_work(in, copied, anchor);
    if (work == in.size()) break;
    std::size_t end = work;
    while (end < in.size()) {
      const CodePoint next = code_point(in, end);
      if (is_inert(next.value)) break;
      end += next.length;
    }
    out += in.substr(copied, anchor - copied);
    append_normal(in.substr(anchor, end - anchor), out);
    copied = end;
  }
  if (copied == 0) return;
  out += in.substr(copied);
  text = std::move(out);
}

}  // namespace cartan::data::bpe
