#include "cli/prompts.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include "cartan/core/text.hpp"
#include "cli/id_lists.hpp"
#include "cli/option.hpp"

namespace cartan::cli {
namespace {

Prompt empty_prompt(std::string name, const PromptDefaults& defaults) {
  return {{{}, defaults.options, std::move(name)}, {}, defaults.stops, {}};
}

/// One object of JSON lines.
class JsonLine {
 public:
  JsonLine(const Json& json, const data::Tokenizer& tokenizer, Prompt& prompt)
      : json_(json), tokenizer_(tokenizer), prompt_(prompt) {}

  void read() {
    if (!json_.is_object())
      throw DataError("{}: expected an object, as {{\"prompt\": \"...\"}}", prompt_.request.name);
    infer::GenerateOptions& options = prompt_.request.options;
    const std::map<std::string, std::function<void(const Json&)>, std::less<>> readers{
        {"prompt", [&](const Json& value) { take_text(value); }},
        {"ids", [&](const Json& value) { take_ids(value); }},
        {"id", [&](const Json& value) { prompt_.id = value; }},
        {"max_new_tokens", [&](const Json& v) { options.max_new_tokens = integer("max_new_tokens", v, 1); }},
        {"temperature",
         [&](const Json& v) { options.sampling.temperature = number("temperature", v, {.low = 0}); }},
        {"top_k", [&](const Json& v) { options.sampling.top_k = integer("top_k", v, 0); }},
        {"top_p",
         [&](const Json& v) {
           options.sampling.top_p = number("top_p", v, {.low = 0, .high = 1, .open_low = true});
         }},
        {"repetition_penalty",
         [&](const Json& v) { options.repetition_penalty = number("repetition_penalty", v, above(0)); }},
        {"seed",
         [&](const Json& v) {
           if (!v.is_number_unsigned()) refuse("seed", v, "a whole number, at least 0");
           options.seed = v.get<std::uint64_t>();
         }},
        {"stop", [&](const Json& value) { take_stops(value); }}};
    for (const auto& item : json_.items()) {
      const auto reader = readers.find(item.key());
      if (reader == readers.end()) refuse_key(item.key(), readers);
      reader->second(item.value());
    }
    if (json_.contains("prompt") == json_.contains("ids"))
      throw DataError("{}: expected either \"prompt\" or \"ids\"", prompt_.request.name);
  }

 private:
  template <class Readers>
  [[noreturn]] void refuse_key(const std::string& key, const Readers& readers) const {
    std::vector<std::string> names;
    names.reserve(readers.size());
    for (const auto& entry : readers) names.push_back(entry.first);
    const auto near = nearest(std::string_view(key).substr(0, 64), names);
    throw DataError(
        "{}: unknown key \"{}\"{}", prompt_.request.name, printable(key),
        near ? fmt::format(" (did you mean {}?)", *near) : fmt::format(": use {}", fmt::join(names, ", ")));
  }
  [[noreturn]] void refuse(std::string_view key, const Json& value, std::string_view expected) const {
    throw DataError("{}: \"{}\" is {}, expected {}", prompt_.request.name, key,
                    printable(value.dump(-1, ' ', true)), expected);
  }
  Index integer(std::string_view key, const Json& value, Index lowest) const {
    const bool fits =
        value.is_number_integer() && value.get<Index>() >= lowest && value.get<Index>() <= Index{1} << 40;
    if (!fits) refuse(key, value, fmt::format("a whole number, at least {}", lowest));
    return value.get<Index>();
  }
  double number(std::string_view key, const Json& value, const Range& range) const {
    const double found = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
    const bool low = range.open_low ? found > range.low : found >= range.low;
    if (!low || !(found <= range.high))
      refuse(key, value,
             range.high == 1 ? "a number above 0 and at most 1"
                             : fmt::format("a number {} 0", range.open_low ? "above" : "of at least"));
    return found;
  }
  void take_text(const Json& value) {
    if (!value.is_string()) refuse("prompt", value, "a text");
    prompt_.text = value.get<std::string>();
    std::vector<std::int32_t>& ids = prompt_.request.prompt;
    ids.assign(tokenizer_.ids_before().begin(), tokenizer_.ids_before().end());
    tokenizer_.append_ids(prompt_.text, true, ids);
  }
  void take_ids(const Json& value) {
    const auto ids = integers_of(value);
    if (!ids) refuse("ids", value, "a list of token ids");
    prompt_.request.prompt = *ids;
  }
  void take_stops(const Json& value) {
    prompt_.stops.clear();
    for (const Json& stop : value.is_array() ? value : Json::array({value})) {
      if (!stop.is_string() || stop.get<std::string>().empty())
        refuse("stop", value, "a text that is not empty, or a list of them");
      prompt_.stops.push_back(stop.get<std::string>());
    }
  }

  const Json& json_;
  const data::Tokenizer& tokenizer_;
  Prompt& prompt_;
};

/// With the numbers of the lines, from 1.
std::vector<std::string> lines_of(std::string_view content) {
  std::vector<std::string> lines = split(content, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

std::vector<Prompt> some(std::vector<Prompt> prompts, const std::string& name) {
  if (prompts.empty()) throw DataError("{}: no prompt", name);
  return prompts;
}

}  // namespace

Prompt prompt_of_text(std::string text, std::string name, const data::Tokenizer& tokenizer,
                      const PromptDefaults& defaults) {
  Prompt prompt = empty_prompt(std::move(name), defaults);
  // What the tokenizer puts before a text; what it puts after one would end the prompt.
  prompt.request.prompt.assign(tokenizer.ids_before().begin(), tokenizer.ids_before().end());
  tokenizer.append_ids(text, true, prompt.request.prompt);
  prompt.text = std::move(text);
  return prompt;
}

std::vector<Prompt> prompts_of_lines(std::string_view content, const std::string& name,
                                     const data::Tokenizer& tokenizer, const PromptDefaults& defaults) {
  std::vector<Prompt> prompts;
  for (std::string& line : lines_of(content)) {
    std::string at = fmt::format("{}:{}", name, prompts.size() + 1);
    prompts.push_back(prompt_of_text(std::move(line), std::move(at), tokenizer, defaults));
  }
  return some(std::move(prompts), name);
}

std::vector<Prompt> prompts_of_id_lists(std::string_view content, const std::string& name,
                                        const PromptDefaults& defaults) {
  std::vector<Prompt> prompts;
  for (std::vector<std::int32_t>& ids : parse_id_lists(content, name)) {
    prompts.push_back(empty_prompt(fmt::format("{}: list {}", name, prompts.size()), defaults));
    prompts.back().request.prompt = std::move(ids);
  }
  return some(std::move(prompts), name);
}

std::vector<Prompt> prompts_of_json_lines(std::string_view content, const std::string& name,
                                          const data::Tokenizer& tokenizer, const PromptDefaults& defaults) {
  std::vector<Prompt> prompts;
  std::size_t number = 0;
  for (const std::string& line : lines_of(content)) {
    ++number;
    if (trim(line).empty()) continue;
    const std::string at = fmt::format("{}:{}", name, number);
    prompts.push_back(empty_prompt(at, defaults));
    JsonLine(parse_json(line, at), tokenizer, prompts.back()).read();
  }
  return some(std::move(prompts), name);
}

}  // namespace cartan::cli
