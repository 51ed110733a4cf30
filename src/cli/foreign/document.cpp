#include "cli/foreign/document.hpp"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <charconv>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <vector>

#include "cartan/core/error.hpp"
#include "cartan/core/text.hpp"
#include "cli/option.hpp"

namespace cartan::cli::foreign {
namespace {

constexpr std::size_t kMostBytes = 1 << 20, kMostValues = 10000, kMostLevels = 32;

void check_size(std::size_t values, std::size_t levels, std::string_view path) {
  if (values > kMostValues)
    throw DataError("{}: more than {} values: is it a configuration?", path, kMostValues);
  if (levels > kMostLevels)
    throw DataError("{}: nested deeper than {} levels: is it a configuration?", path, kMostLevels);
}

[[noreturn]] void throw_doubled(std::string_view path, const std::string& key) {
  throw DataError("{}: the key {} stands twice in one object: remove one of the two", path, printable(key));
}

Json parse_json_document(std::string_view text, std::string_view path) {
  std::vector<std::set<std::string>> names;  // of the objects that are open
  std::size_t values = 0;
  const auto look = [&](int depth, Json::parse_event_t event, Json& parsed) {
    check_size(++values, static_cast<std::size_t>(depth), path);
    if (event == Json::parse_event_t::object_start) names.emplace_back();
    if (event == Json::parse_event_t::object_end) names.pop_back();
    if (event == Json::parse_event_t::key && !names.back().insert(parsed.get<std::string>()).second)
      throw_doubled(path, parsed.get<std::string>());
    return true;
  };
  try {
    return Json::parse(text, look, true, true);
  } catch (const Json::exception&) {
    return parse_json(text, path, true);  // names the line
  }
}

template <class T>
std::optional<T> number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  T value{};
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

/// A scalar without quotes.
Json plain_scalar(const std::string& text) {
  static const std::map<std::string, bool> words{
      {"true", true}, {"True", true}, {"TRUE", true},   {"yes", true},    {"Yes", true},
      {"on", true},   {"On", true},   {"false", false}, {"False", false}, {"FALSE", false},
      {"no", false},  {"No", false},  {"off", false},   {"Off", false}};
  if (const auto word = words.find(text); word != words.end()) return word->second;
  if (text == ".nan" || text == ".NaN" || text == ".NAN") return std::numeric_limits<double>::quiet_NaN();
  // from_chars takes "inf" and "nan" as numbers; in YAML they are texts.
  const bool may_be_number = text.find_first_of("0123456789") != std::string::npos &&
                             text.find_first_not_of("0123456789+-.eE") == std::string::npos;
  if (may_be_number) {
    if (const auto whole = number<std::int64_t>(text)) return *whole;
    if (const auto real = number<double>(text)) return *real;
  }
  return text;
}

/// Builds the tree from yaml-cpp's events, so that nothing is built that is too large, and no alias expanded.
class YamlBuilder : public YAML::EventHandler {
 public:
  explicit YamlBuilder(std::string_view path) : path_(path) {}
  Json take() { return std::move(top_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { add(mark, Json()); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw DataError("{}:{}: aliases (*name) are not read: write the value itself", path_, mark.line + 1);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                const std::string& value) override {
    const bool is_key = !open_.empty() && open_.back().value.is_object() && !open_.back().has_key;
    add(mark, tag == "?" && !is_key ? plain_scalar(value) : Json(value));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    open(mark, Json::array());
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    open(mark, Json::object());
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    Json value;
    YAML::Mark mark;
    std::string key = {};
    bool has_key = false;
  };

  void open(const YAML::Mark& mark, Json empty) {
    check_size(values_, open_.size() + 1, path_);
    open_.push_back({std::move(empty), mark});
  }
  void close() {
    Open done = std::move(open_.back());
    open_.pop_back();
    add(done.mark, std::move(done.value));
  }
  void add(const YAML::Mark& mark, Json value) {
    check_size(++values_, open_.size(), path_);
    if (open_.empty()) {
      top_ = std::move(value);
      return;
    }
    Open& parent = open_.back();
    if (parent.value.is_array()) {
      parent.value.push_back(std::move(value));
    } else if (parent.has_key) {
      parent.value[parent.key] = std::move(value);
      parent.has_key = false;
    } else {
      if (!value.is_string()) throw DataError("{}:{}: expected a name as key", path_, mark.line + 1);
      parent.key = value.get<std::string>();
      if (parent.value.contains(parent.key)) throw_doubled(path_, parent.key);
      parent.has_key = true;
    }
  }

  std::string_view path_;
  std::size_t values_ = 0;
  std::vector<Open> open_;
  Json top_;
};

Json parse_yaml_document(std::string_view text, std::string_view path) {
  std::istringstream stream{std::string(text)};
  YamlBuilder builder(path);
  try {
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    Json top = builder.take();
    YamlBuilder rest(path);
    if (parser.HandleNextDocument(rest))
      throw DataError("{}: several YAML documents: leave one in the file", path);
    return top;
  } catch (const YAML::Exception& error) {
    throw DataError("{}:{}: not valid YAML: {}", path, error.mark.line + 1, printable(error.msg, 200));
  }
}

}  // namespace

Json parse_document(std::string_view text, std::string_view path) {
  if (text.size() > kMostBytes)
    throw DataError("{}: {} long, expected a configuration of at most {}", path, format_bytes(text.size()),
                    format_bytes(kMostBytes));
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  if (text.find('\0') != std::string_view::npos)
    throw DataError("{}: holds zero bytes: is it a text file?", path);
  Json top = trim(text).starts_with('{') ? parse_json_document(text, path) : parse_yaml_document(text, path);
  if (!top.is_object())
    throw DataError("{}: expected keys with values, a JSON object or a YAML map, found {}", path,
                    top.is_null() ? "nothing" : top.type_name());
  return top;
}

}  // namespace cartan::cli::foreign
