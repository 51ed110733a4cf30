#include "cli/ini.hpp"

#include <map>
#include <optional>

#include "cartan/core/text.hpp"
#include "cli/option.hpp"

namespace cartan::cli {
namespace {

/// Cuts a comment: '#' at the start or behind a blank.
std::string_view without_comment(std::string_view text) {
  for (std::size_t at = text.find('#'); at != std::string_view::npos; at = text.find('#', at + 1)) {
    if (at == 0 || text[at - 1] == ' ' || text[at - 1] == '\t') return text.substr(0, at);
  }
  return text;
}

/// A value that begins with '"'. Nothing if the quotes are not closed, an escape is unknown, or more than a
/// comment follows.
std::optional<std::string> unquote(std::string_view text) {
  static const std::map<char, char> escapes{{'n', '\n'}, {'r', '\r'}, {'t', '\t'}, {'"', '"'}, {'\\', '\\'}};
  std::string value;
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"') {
      if (!trim(without_comment(text.substr(i + 1))).empty()) return std::nullopt;
      return value;
    }
    if (text[i] == '\\') {
      const auto escape = i + 1 < text.size() ? escapes.find(text[++i]) : escapes.end();
      if (escape == escapes.end()) return std::nullopt;
      value += escape->second;
    } else {
      value += text[i];
    }
  }
  return std::nullopt;
}

std::optional<std::string> read_value(std::string_view text) {
  text = trim(text);
  return text.starts_with('"') ? unquote(text) : std::string(trim(without_comment(text)));
}

class Reader {
 public:
  Reader(std::string_view path, Problems& problems) : path_(path), problems_(problems) {}

  void read_line(std::string_view raw) {
    ++line_;
    if (raw.find('\0') != std::string_view::npos)
      return report("this line holds a zero byte: is it a text file?");
    const std::string_view line = trim(raw);
    if (line.empty() || line[0] == '#' || line[0] == ';') return;
    if (line[0] == '[') return read_section(trim(without_comment(line)));
    read_entry(line);
  }
  std::vector<IniEntry> take() { return std::move(entries_); }

 private:
  void report(std::string_view what) { problems_.add("{}:{}: {}", path_, line_, what); }

  void read_section(std::string_view line) {
    const std::string_view name =
        line.ends_with(']') ? trim(line.substr(1, line.size() - 2)) : std::string_view();
    if (name.empty()) return report(fmt::format("expected [section], found '{}'", printable(line)));
    section_ = name;
  }

  void read_entry(std::string_view line) {
    const std::size_t equals = line.find('=');
    const std::string_view name = trim(line.substr(0, equals));
    if (equals == std::string_view::npos || name.empty())
      return report(
          fmt::format("expected [section], name = value or # comment, found '{}'", printable(line)));
    const auto value = read_value(line.substr(equals + 1));
    if (!value)
      return report(
          fmt::format("the value of {} begins with a quote but is no text in quotes", printable(name)));
    std::string key = section_.empty() ? std::string(name) : section_ + "." + std::string(name);
    const auto [first, is_new] = line_of_key_.try_emplace(key, line_);
    if (!is_new)
      return report(
          fmt::format("{} is already set on line {}: remove one of the two", printable(key), first->second));
    entries_.push_back({std::move(key), *value, line_});
  }

  std::string_view path_;
  Problems& problems_;
  int line_ = 0;
  std::string section_;
  std::map<std::string, int> line_of_key_;
  std::vector<IniEntry> entries_;
};

}  // namespace

std::vector<IniEntry> parse_ini(std::string_view text, std::string_view path, Problems& problems) {
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  Reader reader(path, problems);
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    reader.read_line(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return reader.take();
}

std::string ini_value(std::string_view value) {
  const bool is_plain = trim(value) == value && !value.starts_with('"') && without_comment(value) == value &&
                        value.find_first_of("\n\r") == std::string_view::npos;
  if (is_plain) return std::string(value);
  std::string quoted = "\"";
  for (const char c : value) {
    switch (c) {
      case '"':
        quoted += "\\\"";
        break;
      case '\\':
        quoted += "\\\\";
        break;
      case '\n':
        quoted += "\\n";
        break;
      case '\r':
        quoted += "\\r";
        break;
      case '\t':
        quoted += "\\t";
        break;
      default:
        quoted += c;
    }
  }
  return quoted + "\"";
}

}  // namespace cartan::cli
