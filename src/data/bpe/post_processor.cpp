#include "post_processor.hpp"

#include <algorithm>

#include "normalizer.hpp"

namespace cartan::data::bpe {
namespace {

using IsToken = std::function<bool(std::int32_t)>;

std::int32_t read_id(const JsonField& field, const IsToken& is_token) {
  const auto id = static_cast<std::int32_t>(field.number(INT32_MAX));
  if (!is_token(id)) field.refuse("no token has the id {}", id);
  return id;
}

/// ["</s>", 2]
std::int32_t read_pair(const JsonField& field, const IsToken& is_token) {
  if (field.size() != 2) field.refuse("expected a token and its id");
  return read_id(field.at(std::size_t{1}), is_token);
}

Template read_template(const JsonField& field, const IsToken& is_token) {
  field.allow({"type", "single", "pair", "special_tokens"});
  Template result;
  const JsonField single = field.at("single");
  bool has_text = false;
  for (std::size_t i = 0; i < single.size(); ++i) {
    const JsonField part = single.at(i);
    part.allow({"SpecialToken", "Sequence"});
    if (const auto sequence = part.find("Sequence")) {
      sequence->allow({"id", "type_id"});
      if (has_text || sequence->at("id").text() != "A") sequence->refuse("expected the sequence A once");
      has_text = true;
      continue;
    }
    const JsonField token = part.at("SpecialToken");
    token.allow({"id", "type_id"});
    const JsonField meaning = field.at("special_tokens").at(token.at("id").text());
    meaning.allow({"id", "ids", "tokens"});
    const JsonField ids = meaning.at("ids");
    for (std::size_t k = 0; k < ids.size(); ++k)
      (has_text ? result.after : result.before).push_back(read_id(ids.at(k), is_token));
  }
  if (!has_text) single.refuse("the sequence A is missing");
  return result;
}

Template read(const JsonField& field, const IsToken& is_token, int depth) {
  if (depth > kDeepest) field.refuse("sequences are nested more than {} deep", kDeepest);
  const std::string& type = field.type();
  if (type == "Sequence") {
    field.allow({"type", "processors"});
    const JsonField list = field.at("processors");
    Template all;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Template one = read(list.at(i), is_token, depth + 1);
      all.before.insert(all.before.begin(), one.before.begin(), one.before.end());
      all.after.insert(all.after.end(), one.after.begin(), one.after.end());
    }
    return all;
  }
  if (type == "ByteLevel") {  // of offsets, which nobody asks for here
    field.allow({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return {};
  }
  if (type == "TemplateProcessing") return read_template(field, is_token);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    field.allow({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
    return {{read_pair(field.at("cls"), is_token)}, {read_pair(field.at("sep"), is_token)}};
  }
  field.at("type").refuse(
      "the post-processor {} is not supported; supported are BertProcessing, ByteLevel, RobertaProcessing, "
      "Sequence "
      "and TemplateProcessing",
      type);
}

}  // namespace

Template read_post_processor(const std::optional<JsonField>& field, const IsToken& is_token) {
  return field ? read(*field, is_token, 0) : Template{};
}

}  // namespace cartan::data::bpe
