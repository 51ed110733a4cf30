// Every line is somebody's: what is wrong with it is said with file and line.
#include "sample_lines.hpp"

#include <utility>

#include "boundary.hpp"
#include "cartan/core/error.hpp"
#include "cartan/core/json.hpp"

namespace cartan::data {
namespace {

constexpr std::string_view kForms =
    "expected {\"messages\": [...]}, {\"prompt\": \"...\", \"completion\": \"...\"} or {\"input_ids\": "
    "[...]}";
constexpr std::int64_t kIgnoredLabel = -100;

bool has_chat(const Json& json) { return json.contains("messages"); }
bool has_completion(const Json& json) { return json.contains("completion"); }
bool has_ids(const Json& json) { return json.contains("input_ids"); }

const std::string& text_member(const Json& json, std::string_view key, std::string_view where) {
  const auto member = json.find(key);
  if (member == json.end()) throw DataError("{}: no \"{}\"", where, key);
  if (!member->is_string())
    throw DataError("{}: \"{}\" is a JSON {}, expected a string", where, key, member->type_name());
  return member->get_ref<const std::string&>();
}

/// An array of whole numbers.
std::vector<std::int64_t> numbers_of(const Json& json, std::string_view key, std::string_view where) {
  const Json& member = json.at(key);
  if (!member.is_array())
    throw DataError("{}: \"{}\" is a JSON {}, expected an array of token ids", where, key,
                    member.type_name());
  std::vector<std::int64_t> numbers;
  numbers.reserve(member.size());
  for (std::size_t i = 0; i < member.size(); ++i) {
    if (!member[i].is_number_integer() ||
        (member[i].is_number_unsigned() && member[i].get<std::uint64_t>() > INT64_MAX))
      throw DataError("{}: {}[{}] is no whole number of a token id", where, key, i);
    numbers.push_back(member[i].get<std::int64_t>());
  }
  return numbers;
}

/// Members that would change what a template of transformers writes.
void refuse_tools(const Json& json, std::string_view where) {
  for (const std::string_view key : {"tools", "documents", "tool_calls", "function_call"}) {
    const auto member = json.find(key);
    if (member != json.end() && !member->is_null() && !member->empty())
      throw DataError(
          "{}: \"{}\" is not supported: write what it stands for into the content, or give ready "
          "\"input_ids\" and \"labels\"",
          where, key);
  }
}

}  // namespace

bool is_sample_line(std::string_view line, std::string_view json_key) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object()) return false;
  const auto text = json.find(json_key);
  if (text != json.end() && text->is_string()) return false;
  return has_chat(json) || has_completion(json) || has_ids(json);
}

Json parse_object_line(std::string_view line, std::string_view expected, const std::string& path,
                       Index number) {
  Json json;
  try {
    json = Json::parse(line);
  } catch (const nlohmann::json::parse_error& error) {
    throw DataError("{} line {}: not valid JSON near column {}, expected one object a line, {}", path, number,
                    error.byte, expected);
  } catch (const nlohmann::json::exception& error) {  // a number that no type holds
    throw DataError("{} line {}: not valid JSON: {}", path, number, error.what());
  }
  if (!json.is_object())
    throw DataError("{} line {}: found a JSON {}, expected an object {}", path, number, json.type_name(),
                    expected);
  return json;
}

SampleEncoder::SampleEncoder(const Tokenizer& tokenizer, std::string template_name,
                             std::string tokenizer_spec)
    : tokenizer_(tokenizer),
      template_name_(std::move(template_name)),
      tokenizer_spec_(std::move(tokenizer_spec)),
      before_(tokenizer.ids_before().begin(), tokenizer.ids_before().end()),
      after_(tokenizer.ids_after().begin(), tokenizer.ids_after().end()) {}

const ChatEncoder& SampleEncoder::chat_encoder() const {
  std::call_once(chat_once_, [this] {
    chat_.emplace(tokenizer_, resolve_chat_template(template_name_, tokenizer_spec_));
  });
  return *chat_;
}

void SampleEncoder::append(std::string_view line, const std::string& path, Index number,
                           CountedIds& out) const {
  const Json json = parse_object_line(line, "with a sample", path, number);
  const std::string where = fmt::format("{} line {}", path, number);
  const int forms = int{has_chat(json)} + int{has_completion(json)} + int{has_ids(json)};
  if (forms == 0) throw DataError("{}: no sample, {}", where, kForms);
  if (forms > 1) throw DataError("{}: several forms of a sample in one line, {}", where, kForms);
  if (has_chat(json)) {
    refuse_tools(json, where);
    append_chat(json.at("messages"), where, out);
  } else if (has_completion(json)) {
    if (!json.contains("prompt")) throw DataError("{}: \"completion\" without \"prompt\"", where);
    for (const std::string_view key : {"prompt", "completion"})
      if (json.at(key).is_array())
        throw DataError("{}: \"{}\" is a JSON array, expected a string; write chats as \"messages\"", where,
                        key);
    const std::string& completion = text_member(json, "completion", where);
    if (completion.empty()) throw DataError("{}: \"completion\" is empty", where);
    append_completion(text_member(json, "prompt", where), completion, out);
  } else {
    const std::vector<std::int64_t> ids = numbers_of(json, "input_ids", where);
    std::vector<std::int64_t> labels;
    if (json.contains("labels")) labels = numbers_of(json, "labels", where);
    append_ready(
        ids, json.contains("labels") ? std::optional(std::span<const std::int64_t>(labels)) : std::nullopt,
        where, out);
  }
}

void SampleEncoder::append_chat(const Json& messages, std::string_view where, CountedIds& out) const {
  if (!messages.is_array())
    throw DataError("{}: \"messages\" is a JSON {}, expected an array of {{\"role\", \"content\"}}", where,
                    messages.type_name());
  if (messages.empty()) throw DataError("{}: \"messages\" is empty", where);
  const ChatEncoder& encoder = chat_encoder();
  std::vector<ChatTurn> turns;
  turns.reserve(messages.size());
  bool has_answer = false;
  for (const Json& message : messages) {
    const std::string place = fmt::format("{}: messages[{}]", where, turns.size());
    if (!message.is_object())
      throw DataError("{} is a JSON {}, expected {{\"role\": \"...\", \"content\": \"...\"}}", place,
                      message.type_name());
    refuse_tools(message, place);
    turns.push_back({text_member(message, "role", place), text_member(message, "content", place)});
    if (const std::string why = encoder.why_not_role(turns.back().role); !why.empty())
      throw DataError("{}: {}", place, why);
    has_answer = has_answer || turns.back().role == "assistant";
  }
  if (!has_answer) throw DataError("{}: no turn of the assistant, so there is nothing to learn", where);
  encoder.append_ids(turns, out.ids, out.counted);
}

void SampleEncoder::append_completion(const std::string& prompt, const std::string& completion,
                                      CountedIds& out) const {
  out.ids.insert(out.ids.end(), before_.begin(), before_.end());
  const std::size_t begin = out.ids.size();
  tokenizer_.append_ids(prompt + completion, true, out.ids);
  const std::size_t own = first_beyond(tokenizer_, std::span(out.ids).subspan(begin), prompt,
                                       [&] { return tokenizer_.encode(prompt); });
  out.counted.resize(begin + own, 0);
  out.counted.resize(out.ids.size(), 1);
  out.ids.insert(out.ids.end(), after_.begin(), after_.end());
  if (after_.empty() || after_.back() != tokenizer_.end_of_text())
    out.ids.push_back(tokenizer_.end_of_text());
  out.counted.resize(out.ids.size(), 1);
}

void SampleEncoder::append_ready(std::span<const std::int64_t> ids,
                                 std::optional<std::span<const std::int64_t>> labels, std::string_view where,
                                 CountedIds& out) const {
  if (ids.empty()) throw DataError("{}: \"input_ids\" is empty", where);
  if (labels && labels->size() != ids.size())
    throw DataError("{}: {} labels for {} input_ids, expected as many", where, labels->size(), ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= tokenizer_.vocab_size())
      throw DataError(
          "{}: input_ids[{}] = {} is outside the vocabulary of {} ids of the tokenizer {}; give the "
          "model's with data.tokenizer",
          where, i, ids[i], tokenizer_.vocab_size(), tokenizer_.name());
    if (labels && (*labels)[i] != kIgnoredLabel && (*labels)[i] != ids[i])
      throw DataError("{}: labels[{}] = {}, expected -100 (it does not count) or input_ids[{}] = {}", where,
                      i, (*labels)[i], i, ids[i]);
    out.ids.push_back(static_cast<std::int32_t>(ids[i]));
    out.counted.push_back(!labels || (*labels)[i] != kIgnoredLabel ? 1 : 0);
  }
}

}  // namespace cartan::data
