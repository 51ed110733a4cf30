#include "cartan/train/choices.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "cartan/core/narrow.hpp"

namespace cartan::train {
namespace {

// White space as Unicode has it, and the four separators that Python counts too.
constexpr std::array<std::string_view, 29> kWhiteSpace{
    " ",      "\t",     "\n",     "\v",     "\f",     "\r",     "\x1c",   "\x1d",   "\x1e",   "\x1f",
    "\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006",
    "\u2007", "\u2008", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};

std::string_view without_trailing_space(std::string_view text) {
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (const std::string_view space : kWhiteSpace)
      if (text.ends_with(space)) {
        text.remove_suffix(space.size());
        goes_on = true;
      }
  }
  return text;
}

std::string_view without_leading_space(std::string_view text) {
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (const std::string_view space : kWhiteSpace)
      if (text.starts_with(space)) {
        text.remove_prefix(space.size());
        goes_on = true;
      }
  }
  return text;
}

Index count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

void measure(std::string_view text, Choice& choice) {
  const std::string_view shown = without_leading_space(text);
  choice.bytes = std::max<Index>(1, std::ssize(shown));
  choice.characters = std::max<Index>(1, count_characters(shown));
}

/// Ids of a text that begins a document, with those before it unless the text itself says them.
std::vector<std::int32_t> encode_begin(const data::Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> ids;
  tokenizer.append_ids(text, true, ids);
  const auto before = tokenizer.ids_before();
  const bool says_them = ids.size() >= before.size() && std::equal(before.begin(), before.end(), ids.begin());
  if (!says_them) ids.insert(ids.begin(), before.begin(), before.end());
  return ids;
}

/// What stands before a choice without a context.
std::vector<std::int32_t> empty_context(const data::Tokenizer& tokenizer) {
  const auto before = tokenizer.ids_before();
  if (!before.empty()) return {before.begin(), before.end()};
  return {tokenizer.end_of_text()};
}

/// What a line must have, with the line's place in every message.
class LineReader {
 public:
  LineReader(std::string_view line, std::string_view where, const data::Tokenizer& tokenizer, Index vocab)
      : where_(where), tokenizer_(tokenizer), vocab_(vocab), json_(parse_json(line, where)) {
    if (!json_.is_object())
      throw DataError("{}: expected a JSON object with context (or context_ids) and choices", where);
  }

  Question read() const {
    Question question;
    if (json_.contains("id")) question.id = json_["id"];
    const bool has_text = json_.contains("context"), has_ids = json_.contains("context_ids");
    if (has_text == has_ids)
      throw DataError("{}: expected one of context (a text) and context_ids (a list of token ids), found {}",
                      where_, has_text ? "both" : "neither");
    if (has_text && !json_["context"].is_string())
      throw DataError("{}: context is {}: expected a text", where_, json_["context"].type_name());
    const auto choices = json_.find("choices");
    if (choices == json_.end() || !choices->is_array() || choices->size() < 2)
      throw DataError("{}: expected choices, a list of two or more texts or lists of token ids", where_);
    for (std::size_t i = 0; i < choices->size(); ++i) {
      question.choices.push_back(read_choice((*choices)[i], fmt::format("choices[{}]", i), has_ids));
      check((question.choices.back().context), has_ids ? "context_ids" : "context");
      check((question.choices.back().ids), fmt::format("choices[{}]", i));
    }
    const auto label = json_.find("label");
    if (label == json_.end() || label->is_null()) return question;
    if (!label->is_number_integer() || label->get<std::int64_t>() < 0 ||
        label->get<std::int64_t>() >= std::ssize(question.choices))
      throw DataError("{}: label is {}: expected the index of one of the {} choices, from 0", where_,
                      label->dump(), question.choices.size());
    question.label = label->get<Index>();
    return question;
  }

 private:
  std::vector<std::int32_t> read_ids(const Json& json, const std::string& name) const {
    auto ids = integers_of(json);
    if (ids && !ids->empty()) return std::move(*ids);
    throw DataError("{}: {} is {}: expected a list of one or more token ids", where_, name,
                    json.is_array() && json.empty() ? "empty" : json.dump());
  }

  Choice read_choice(const Json& json, const std::string& name, bool has_context_ids) const {
    if (!json.is_string()) {
      Choice choice;
      choice.ids = read_ids(json, name);
      choice.context = has_context_ids ? read_ids(json_["context_ids"], "context_ids")
                                       : encode_begin(tokenizer_, json_["context"].get<std::string>());
      if (choice.context.empty()) choice.context = empty_context(tokenizer_);
      return choice;
    }
    const auto text = json.get<std::string>();
    try {
      if (!has_context_ids) return encode_choice(tokenizer_, json_["context"].get<std::string>(), text);
      Choice choice;
      choice.context = read_ids(json_["context_ids"], "context_ids");
      tokenizer_.append_ids(text, false, choice.ids);
      measure(text, choice);
      if (choice.ids.empty()) throw DataError("an empty text has no token to be predicted");
      return choice;
    } catch (const DataError& error) {
      throw DataError("{}: {}: {}", where_, name, error.what());
    }
  }

  void check(std::span<const std::int32_t> ids, const std::string& name) const {
    try {
      check_ids(ids, vocab_);
    } catch (const DataError& error) {
      throw DataError("{}: {}: {}", where_, name, error.what());
    }
  }

  std::string_view where_;
  const data::Tokenizer& tokenizer_;
  Index vocab_;
  Json json_;
};

template <class Value>
Index first_largest(const std::vector<ChoiceScore>& scores, const Value& value) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < scores.size(); ++i)
    if (value(scores[i]) > value(scores[best])) best = i;
  return narrow<Index>(best);
}

Prediction predict(const std::vector<ChoiceScore>& scores) {
  Prediction predicted;
  predicted.sum = first_largest(scores, [](const ChoiceScore& s) { return s.log_likelihood; });
  predicted.per_token = first_largest(
      scores, [](const ChoiceScore& s) { return s.log_likelihood / static_cast<double>(s.tokens); });
  const bool has_texts =
      std::all_of(scores.begin(), scores.end(), [](const ChoiceScore& s) { return s.bytes.has_value(); });
  if (!has_texts) return predicted;
  predicted.bytes = first_largest(
      scores, [](const ChoiceScore& s) { return s.log_likelihood / static_cast<double>(*s.bytes); });
  predicted.characters = first_largest(
      scores, [](const ChoiceScore& s) { return s.log_likelihood / static_cast<double>(*s.characters); });
  return predicted;
}

}  // namespace

Choice encode_choice(const data::Tokenizer& tokenizer, std::string_view context, std::string_view choice) {
  Choice encoded;
  measure(choice, encoded);
  const std::string whole = std::string(context) + std::string(choice);
  const std::string_view stripped = without_trailing_space(context);
  if (!context.empty()) {
    encoded.context = encode_begin(tokenizer, stripped);
    const std::vector<std::int32_t> all = encode_begin(tokenizer, whole);
    const std::size_t skipped = std::min(encoded.context.size(), all.size());
    encoded.ids.assign(all.begin() + narrow<std::ptrdiff_t>(skipped), all.end());
  } else {
    tokenizer.append_ids(whole, true, encoded.ids);
  }
  if (encoded.context.empty()) encoded.context = empty_context(tokenizer);
  if (encoded.ids.empty())
    throw DataError(choice.empty() ? "an empty text has no token to be predicted"
                                   : "no token is left of it: the tokenizer joins all of it to the context");
  return encoded;
}

Question parse_question(std::string_view line, std::string_view where, const data::Tokenizer& tokenizer,
                        Index vocab) {
  return LineReader(line, where, tokenizer, vocab).read();
}

std::vector<Answer> answer(const LoadedModel& model, std::span<const Question> questions, Index longest,
                           const EvaluationPlace& place) {
  std::vector<Answer> answers;
  std::vector<TargetSequence> sequences;
  for (const Question& question : questions) {
    Answer& one = answers.emplace_back();
    for (const Choice& choice : question.choices) {
      std::vector<std::int32_t> ids = choice.context;
      ids.insert(ids.end(), choice.ids.begin(), choice.ids.end());
      if (longest > 0 && std::ssize(ids) > longest + 1) {
        ids.erase(ids.begin(), ids.end() - narrow<std::ptrdiff_t>(longest + 1));
        one.is_cut = true;
      }
      // A choice that fills all of it loses its first token, which nothing is left to predict.
      const Index first = std::max<Index>(1, std::ssize(ids) - std::ssize(choice.ids));
      TargetSequence sequence = TargetSequence::of(ids, first);
      // Nothing follows the last token.
      sequence.ids.pop_back();
      sequence.targets.pop_back();
      one.scores.push_back({0, std::ssize(ids) - first, choice.bytes, choice.characters});
      sequences.push_back(std::move(sequence));
    }
  }
  const std::vector<ExactSum> losses = evaluate_sequences(model, sequences, place);
  auto loss = losses.begin();
  for (std::size_t i = 0; i < answers.size(); ++i) {
    for (ChoiceScore& score : answers[i].scores) {
      score.log_likelihood = -(loss++)->value();
      if (!std::isfinite(score.log_likelihood))
        throw NumericError("line {}: the log-likelihood of a choice is not finite", questions[i].line);
    }
    answers[i].predicted = predict(answers[i].scores);
  }
  return answers;
}

Json to_json(const Question& question, const Answer& answer) {
  const auto optional = [](const std::optional<Index>& value) { return value ? Json(*value) : Json(); };
  Json json{{"line", question.line}};
  if (!question.id.is_null()) json["id"] = question.id;
  Json sums = Json::array(), tokens = Json::array(), bytes = Json::array(), characters = Json::array();
  for (const ChoiceScore& score : answer.scores) {
    sums.push_back(score.log_likelihood);
    tokens.push_back(score.tokens);
    bytes.push_back(optional(score.bytes));
    characters.push_back(optional(score.characters));
  }
  json["log_likelihoods"] = std::move(sums);
  json["tokens"] = std::move(tokens);
  json["bytes"] = std::move(bytes);
  json["characters"] = std::move(characters);
  json["predicted"] = answer.predicted.sum;
  json["predicted_per_token"] = answer.predicted.per_token;
  json["predicted_per_byte"] = optional(answer.predicted.bytes);
  json["predicted_per_character"] = optional(answer.predicted.characters);
  if (question.label) json["label"] = *question.label;
  if (answer.is_cut) json["cut"] = true;
  return json;
}

void Accuracy::add(const Question& question, const Answer& answer) {
  ++questions_;
  if (answer.is_cut) ++cut_;
  if (!question.label) return;
  ++labels_;
  const Prediction& predicted = answer.predicted;
  if (!predicted.bytes) ++without_text_;
  if (predicted.sum == *question.label) ++right_;
  if (predicted.per_token == *question.label) ++right_per_token_;
  if (predicted.bytes == question.label) ++right_per_byte_;
  if (predicted.characters == question.label) ++right_per_character_;
}

Json Accuracy::summary() const {
  Json json{{"questions", questions_}, {"labels", labels_}, {"cut", cut_}};
  if (labels_ == 0) return json;
  const auto share = [&](Index right) { return static_cast<double>(right) / static_cast<double>(labels_); };
  json["acc"] = share(right_);
  // Of a mean of zeros and ones, from their own variance.
  if (labels_ > 1)
    json["acc_stderr"] = std::sqrt(share(right_) * (1 - share(right_)) / static_cast<double>(labels_ - 1));
  if (without_text_ == 0) {
    json["acc_norm"] = share(right_per_character_);
    json["acc_bytes"] = share(right_per_byte_);
  }
  json["acc_tokens"] = share(right_per_token_);
  return json;
}

}  // namespace cartan::train
