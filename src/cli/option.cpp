#include "cli/option.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <type_traits>

#include "cartan/core/text.hpp"

namespace cartan::cli {
namespace {

template <class T>
constexpr bool kIsNumber = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;

template <class T>
constexpr bool kIsList =
    std::is_same_v<T, std::vector<std::string>> || std::is_same_v<T, std::vector<double>>;

template <class T>
bool is_inside(T value, const Range& range) {
  const auto number = static_cast<double>(value);
  const bool low = range.open_low ? number > range.low : number >= range.low;
  const bool high = range.open_high ? number < range.high : number <= range.high;
  return low && high;
}

/// The whole text as a number; nothing for anything else, infinities and NaN included.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(value)) return std::nullopt;
  }
  return value;
}

std::optional<bool> parse_bool(std::string_view text) {
  if (text == "true" || text == "1" || text == "yes") return true;
  if (text == "false" || text == "0" || text == "no") return false;
  return std::nullopt;
}

bool is_allowed_word(const Option& option, const std::string& text) {
  if (text.empty()) return option.may_be_empty;
  if (option.words.empty()) return true;
  for (const std::string& word : option.words) {
    if (word == text) return true;
  }
  return false;
}

bool assign(bool& target, const Option&, std::string_view text) {
  const auto value = parse_bool(text);
  if (value) target = *value;
  return value.has_value();
}

template <class T>
requires kIsNumber<T>
bool assign(T& target, const Option& option, std::string_view text) {
  const auto value = parse_number<T>(text);
  if (!value || !is_inside(*value, option.range)) return false;
  target = *value;
  return true;
}

bool assign(std::string& target, const Option& option, std::string_view text) {
  std::string value(text);
  if (!is_allowed_word(option, value)) return false;
  target = std::move(value);
  return true;
}

bool assign(std::vector<std::string>& target, const Option& option, std::string_view text) {
  if (option.is_repeated)
    target.emplace_back(text);
  else
    target = split_words(text);
  return true;
}

bool assign(std::vector<double>& target, const Option& option, std::string_view text) {
  std::vector<double> values;
  for (const std::string& word : split_words(text)) {
    const auto value = parse_number<double>(word);
    if (!value || !is_inside(*value, option.range)) return false;
    values.push_back(*value);
  }
  target = std::move(values);
  return true;
}

std::string range_text(const Range& range) {
  const bool low = std::isfinite(range.low), high = std::isfinite(range.high);
  if (low && high && !range.open_low && !range.open_high)
    return fmt::format(" from {} to {}", range.low, range.high);
  std::string text;
  if (low) text += fmt::format("{} {}", range.open_low ? "above" : "at least", range.low);
  if (high)
    text += fmt::format("{}{} {}", low ? " and " : "", range.open_high ? "below" : "at most", range.high);
  return text.empty() ? "" : ", " + text;
}

}  // namespace

bool is_list(const Option& option) {
  return (std::holds_alternative<std::vector<std::string>*>(option.target) && !option.is_repeated) ||
         std::holds_alternative<std::vector<double>*>(option.target);
}

std::vector<std::string> split_words(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n\v\f";
  std::vector<std::string> words;
  for (std::size_t begin = text.find_first_not_of(blanks); begin != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(blanks, begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = text.find_first_not_of(blanks, end);
  }
  return words;
}

std::optional<std::string> set_value(const Option& option, std::string_view text) {
  const bool done = std::visit([&](auto* target) { return assign(*target, option, text); }, option.target);
  if (done) return std::nullopt;
  std::string allowed = allowed_text(option);
  if (const auto near = nearest(text.substr(0, 64), option.words))
    allowed += fmt::format(" (did you mean {}?)", *near);
  return allowed;
}

std::string value_text(const Option& option) {
  return std::visit(
      [](const auto* target) -> std::string {
        using T = std::remove_cvref_t<decltype(*target)>;
        if constexpr (kIsList<T>) {
          return fmt::format("{}", fmt::join(*target, " "));
        } else {
          return fmt::format("{}", *target);
        }
      },
      option.target);
}

std::string allowed_text(const Option& option) {
  return std::visit(
      [&](const auto* target) -> std::string {
        using T = std::remove_cvref_t<decltype(*target)>;
        if constexpr (std::is_same_v<T, bool>) {
          return "true or false";
        } else if constexpr (std::is_same_v<T, std::vector<double>>) {
          return "numbers" + range_text(option.range);
        } else if constexpr (kIsNumber<T>) {
          Range range = option.range;
          // The type's own end is named where a value that fits the range could still be too large for it.
          if (std::is_same_v<T, int> && std::isinf(range.high)) range.high = std::numeric_limits<int>::max();
          if (std::is_unsigned_v<T>) range.low = std::max(range.low, 0.0);
          return (std::is_floating_point_v<T> ? "a number" : "a whole number") + range_text(range);
        } else {
          if (!option.words.empty()) return fmt::format("one of {}", fmt::join(option.words, ", "));
          return option.may_be_empty ? "a text" : "a text that is not empty";
        }
      },
      option.target);
}

std::string placeholder(const Option& option) {
  if (option.is_flag) return "";
  if (!option.value_name.empty()) return option.value_name;
  if (!option.words.empty()) {
    const std::string words = fmt::format("{}", fmt::join(option.words, "|"));
    return words.size() <= 20 ? words : "NAME";
  }
  return std::visit(
      [](const auto* target) -> std::string {
        using T = std::remove_cvref_t<decltype(*target)>;
        if constexpr (std::is_same_v<T, bool>) return "true|false";
        if constexpr (std::is_floating_point_v<T>) return "X";
        if constexpr (kIsNumber<T>) return "N";
        if constexpr (std::is_same_v<T, std::vector<double>>) return "X...";
        return std::is_same_v<T, std::vector<std::string>> ? "TEXT..." : "TEXT";
      },
      option.target);
}

std::string printable(std::string_view text, std::size_t longest) {
  std::string out;
  for (const char c : text.substr(0, longest)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte == 0x7f ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return text.size() > longest ? out + "..." : out;
}

}  // namespace cartan::cli
