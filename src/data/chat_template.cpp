// A chat becomes a list of tokens and texts; texts are encoded each for itself, as they are between the
// special tokens of a rendered text.
#include "cartan/data/chat_template.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "boundary.hpp"
#include "bpe/json_field.hpp"
#include "bpe/unicode.hpp"
#include "cartan/core/error.hpp"
#include "cartan/core/file.hpp"
#include "cartan/data/utf8.hpp"

namespace cartan::data {
namespace {

namespace fs = std::filesystem;
using Family = ChatTemplate::Family;

constexpr std::array<std::string_view, 3> kRoles{"system", "user", "assistant"};
constexpr std::string_view kChoose = "choose one by name: data.template = chatml, llama3 or phi3";

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::string_view name_of(Family family) { return kChatTemplateNames[static_cast<std::size_t>(family) + 1]; }

/// What Python's str.strip(), and so Jinja's trim, takes away.
bool is_blank(char32_t code) { return bpe::is_white_space(code) || (code >= 0x1C && code <= 0x1F); }

std::string_view strip(std::string_view text) {
  while (!text.empty()) {
    const bpe::CodePoint code = bpe::code_point(text, 0);
    if (!is_blank(code.value)) break;
    text.remove_prefix(code.length);
  }
  while (!text.empty()) {
    std::size_t last = text.size() - 1;
    while ((static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
    if (!is_blank(bpe::code_point(text, last).value)) break;
    text = text.substr(0, last);
  }
  return text;
}

/// The text of the system turn that a ChatML template puts before chats without one: it is spelled out in a
/// Jinja string, or between Jinja's braces.
std::string default_system(std::string_view jinja) {
  constexpr std::string_view kBegin = "<|im_start|>system", kEnd = "<|im_end|>";
  for (std::size_t at = jinja.find(kBegin); at != std::string_view::npos; at = jinja.find(kBegin, at + 1)) {
    std::size_t begin = at + kBegin.size();
    if (jinja.substr(begin).starts_with("\\n"))
      begin += 2;
    else if (jinja.substr(begin).starts_with('\n'))
      begin += 1;
    else
      continue;
    const std::size_t end = jinja.find(kEnd, begin);
    if (end == std::string_view::npos) break;
    const std::string_view text = jinja.substr(begin, end - begin);
    const char quote = at > 0 ? jinja[at - 1] : ' ';
    const bool is_literal = quote == '\'' || quote == '"' ? !has(text, std::string_view(&quote, 1))
                                                          : !has(text, "{{") && !has(text, "{%");
    if (!is_literal || text.empty()) continue;
    std::string result;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const bool is_line_feed = text.substr(i).starts_with("\\n");
      result += is_line_feed ? '\n' : text[i];
      i += is_line_feed ? 1 : 0;
    }
    return result;
  }
  return {};
}

/// Why the text is none of the three, where it has the tokens of one.
std::string_view difference(Family family, std::string_view jinja) {
  if (has(jinja, "<think>") || has(jinja, "reasoning_content"))
    return "it rewrites the thinking parts of turns, as Qwen3's does";
  if (has(jinja, "strip(") || has(jinja, "split(")) return "it rewrites the text of turns";
  if (family == Family::chatml && has(jinja, "<|im_sep|>")) return "it has <|im_sep|>, as Phi-4's does";
  if (family == Family::llama3 && (has(jinja, "Cutting Knowledge Date") || has(jinja, "date_string")))
    return "it adds a system turn with dates, as Llama 3.1's and later ones do";
  if (family != Family::phi3 && has(jinja, "eos_token")) return "it has eos_token, which that one has not";
  return {};
}

fs::path folder_of(std::string_view tokenizer) {
  std::error_code ignored;
  const fs::path path = tokenizer;
  return fs::is_directory(path, ignored) ? path : path.parent_path();
}

/// The content of a token in tokenizer_config.json: a string, or an object with one; else empty.
std::string token_text(const bpe::JsonField& config, std::string_view key) {
  const auto field = config.find(key);
  if (!field) return {};
  return field->is_object() ? field->at("content").text() : field->text();
}

/// The member chat_template: a text, or a list of named ones, of which "default" counts.
std::string template_text(const bpe::JsonField& config) {
  const auto field = config.find("chat_template");
  if (!field) return {};
  if (!field->is_array()) return field->text();
  for (std::size_t i = 0; i < field->size(); ++i)
    if (field->at(i).at("name").text() == "default") return field->at(i).at("template").text();
  return {};
}

}  // namespace

ChatTemplate chat_template_of(std::string_view family) {
  if (family == "chatml") return {.family = Family::chatml};
  if (family == "llama3") return {.family = Family::llama3, .begin = "<|begin_of_text|>", .trims = true};
  if (family == "phi3") return {.family = Family::phi3, .end = "<|endoftext|>"};
  throw ConfigError("data.template = {} is not known: use auto, chatml, llama3 or phi3", family);
}

ChatTemplate recognize_chat_template(std::string_view jinja, std::string_view bos, std::string_view eos,
                                     std::string_view where) {
  if (!is_valid_utf8(jinja))
    throw DataError("{}: its chat template is not UTF-8; copy the file again", where);
  ChatTemplate found;
  if (has(jinja, "<|start_header_id|>") && has(jinja, "<|eot_id|>"))
    found.family = Family::llama3;
  else if (has(jinja, "<|im_start|>") && has(jinja, "<|im_end|>"))
    found.family = Family::chatml;
  else if (has(jinja, "<|user|>") && has(jinja, "<|assistant|>") && has(jinja, "<|end|>"))
    found.family = Family::phi3;
  else
    throw DataError("{}: its chat template has the tokens of none that is known (chatml, llama3, phi3); {}",
                    where, kChoose);
  if (const std::string_view why = difference(found.family, jinja); !why.empty())
    throw DataError("{}: its chat template looks like {}, but {}; {}", where, name_of(found.family), why,
                    kChoose);
  if (has(jinja, "bos_token")) found.begin = bos;
  if (has(jinja, "eos_token")) found.end = eos;
  if (found.family == Family::chatml) found.system = default_system(jinja);
  found.trims = has(jinja, "trim");
  return found;
}

ChatTemplate resolve_chat_template(std::string_view name, std::string_view tokenizer) {
  if (name != "auto") return chat_template_of(name);
  if (!names_tokenizer_file(tokenizer))
    throw ConfigError("data.template = auto: the tokenizer {} has no chat template; {}", tokenizer, kChoose);
  const fs::path folder = folder_of(tokenizer);
  const fs::path config_path = folder / "tokenizer_config.json", jinja_path = folder / "chat_template.jinja";
  std::error_code ignored;
  bpe::SortedJson json = bpe::SortedJson::object();
  if (fs::exists(config_path, ignored)) {
    try {
      json = bpe::SortedJson::parse(read_file(config_path));
    } catch (const nlohmann::json::exception& error) {
      throw DataError("{}: not valid JSON: {}", config_path.string(), error.what());
    }
  }
  const std::string where = config_path.string();
  const bpe::JsonField config(json, where);
  const bool has_file = fs::exists(jinja_path, ignored);
  const std::string jinja = has_file ? read_file(jinja_path) : template_text(config);
  if (jinja.empty())
    throw ConfigError("data.template = auto: {} has no chat_template, and there is no {}; {}", where,
                      jinja_path.string(), kChoose);
  return recognize_chat_template(jinja, token_text(config, "bos_token"), token_text(config, "eos_token"),
                                 has_file ? jinja_path.string() : where);
}

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer, ChatTemplate chat_template)
    : tokenizer_(tokenizer), template_(std::move(chat_template)) {
  if (!template_.begin.empty()) begin_.push_back({.token = token_of(template_.begin)});
  if (!template_.end.empty()) end_.push_back({.token = token_of(template_.end)});
  switch (template_.family) {
    case Family::chatml:
      turn_begin_ = {token_of("<|im_start|>")};
      turn_end_ = token_of("<|im_end|>");
      break;
    case Family::llama3:
      turn_begin_ = {token_of("<|start_header_id|>"), token_of("<|end_header_id|>")};
      turn_end_ = token_of("<|eot_id|>");
      break;
    case Family::phi3:
      for (const std::string_view role : kRoles) turn_begin_.push_back(token_of(fmt::format("<|{}|>", role)));
      turn_end_ = token_of("<|end|>");
      break;
  }
}

std::int32_t ChatEncoder::token_of(std::string_view content) const {
  if (const auto id = tokenizer_.token_id(content)) return *id;
  throw ConfigError(
      "data.template: the chat template {} needs the token {}, which the tokenizer {} has not; choose the "
      "template of the model's tokenizer",
      name_of(template_.family), content, tokenizer_.name());
}

std::string ChatEncoder::why_not_role(std::string_view role) const {
  if (std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end()) return {};
  return fmt::format(
      "the role \"{}\" is not known to the chat template {}, expected system, user or assistant", role,
      name_of(template_.family));
}

void ChatEncoder::add_turn(std::string_view role, std::string_view text, std::vector<Piece>& pieces) const {
  CARTAN_ASSERT(why_not_role(role).empty());
  if (template_.trims) text = strip(text);
  std::string head;
  switch (template_.family) {
    case Family::chatml:
      pieces.push_back({.token = turn_begin_[0]});
      head = fmt::format("{}\n", role);
      break;
    case Family::llama3:
      pieces.push_back({.token = turn_begin_[0]});
      pieces.push_back({.text = std::string(role), .head = role.size()});
      pieces.push_back({.token = turn_begin_[1]});
      head = "\n\n";
      break;
    case Family::phi3: {
      const auto place = std::find(kRoles.begin(), kRoles.end(), role) - kRoles.begin();
      pieces.push_back({.token = turn_begin_[static_cast<std::size_t>(place)]});
      head = "\n";
      break;
    }
  }
  const bool is_counted = role == "assistant";
  pieces.push_back({.text = fmt::format("{}{}", head, text), .head = head.size(), .is_counted = is_counted});
  pieces.push_back({.token = turn_end_, .is_counted = is_counted});
  if (template_.family != Family::llama3) pieces.push_back({.text = "\n", .head = 1});
}

void ChatEncoder::append_ids(std::span<const ChatTurn> turns, std::vector<std::int32_t>& ids,
                             std::vector<std::uint8_t>& counted) const {
  std::vector<Piece> pieces = begin_;
  if (!template_.system.empty() && (turns.empty() || turns[0].role != "system"))
    add_turn("system", template_.system, pieces);
  for (const ChatTurn& turn : turns) add_turn(turn.role, turn.text, pieces);
  pieces.insert(pieces.end(), end_.begin(), end_.end());

  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (piece.token >= 0) {
      ids.push_back(piece.token);
      counted.push_back(piece.is_counted ? 1 : 0);
      continue;
    }
    const auto beside = [&](std::size_t at) {
      return at < pieces.size() ? std::optional(pieces[at].token) : std::nullopt;
    };
    const std::size_t begin = ids.size();
    tokenizer_.append_ids_between(piece.text, beside(i - 1), beside(i + 1), ids);
    counted.resize(ids.size(), 0);
    if (!piece.is_counted) continue;
    const std::string_view head = std::string_view(piece.text).substr(0, piece.head);
    const std::size_t own = first_beyond(tokenizer_, std::span(ids).subspan(begin), head, [&] {
      std::vector<std::int32_t> alone;
      tokenizer_.append_ids_between(head, beside(i - 1), std::nullopt, alone);
      return alone;
    });
    std::fill(counted.begin() + static_cast<std::ptrdiff_t>(begin + own), counted.end(), 1);
  }
}

}  // namespace cartan::data
