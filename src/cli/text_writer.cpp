#include "cli/text_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>
#include <utility>

#include "cartan/core/error.hpp"

namespace cartan::cli {
namespace {

constexpr std::array<std::string_view, 3> kFinishes{"end", "stop", "length"};  // as infer::Finish

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace

Json to_json(const Written& written) {
  return {{"text", written.text},
          {"ids", written.continuation.tokens},
          {"finish", kFinishes.at(static_cast<std::size_t>(written.continuation.finish))}};
}

Written written_from_json(const Json& json) {
  Written written{json.at("text").get<std::string>(), {}};
  written.continuation.tokens = json.at("ids").get<std::vector<std::int32_t>>();
  for (std::size_t i = 0; i < kFinishes.size(); ++i)
    if (json.at("finish") == kFinishes[i]) written.continuation.finish = static_cast<infer::Finish>(i);
  return written;
}

TextWriter::TextWriter(const std::vector<Prompt>& prompts, OutputForm form)
    : prompts_(prompts), form_(form), texts_(prompts.size()), written_(prompts.size()) {}

void TextWriter::update(std::size_t number, const std::string& text) {
  if (form_ != OutputForm::stream) return;
  texts_[number] = text;
  if (number == turn_) go_on();
}

void TextWriter::finish(std::size_t number, Written written) {
  texts_[number] = written.text;
  written_[number] = std::move(written);
  while (turn_ < prompts_.size() && written_[turn_]) go_on();
  if (turn_ < prompts_.size() && form_ == OutputForm::stream) go_on();
}

void TextWriter::go_on() {
  const Prompt& prompt = prompts_[turn_];
  const bool is_over = written_[turn_].has_value();
  if (form_ == OutputForm::json) {
    Json json = prompt.id.is_null() ? Json::object() : Json{{"id", prompt.id}};
    json.update(to_json(*written_[turn_]));
    print(json.dump() + "\n");
  } else {
    if (!std::exchange(has_begun_, true)) print(prompt.text);
    // A text that turned out not to be one is gone.
    const std::string_view text = texts_[turn_];
    print(text.substr(std::min(printed_, text.size())));
    printed_ = std::max(printed_, text.size());
    if (is_over) print("\n");
  }
  std::fflush(stdout);
  if (!is_over) return;
  // What is printed is not needed any more.
  texts_[turn_] = {};
  written_[turn_]->text = {};
  written_[turn_]->continuation = {};
  ++turn_;
  printed_ = 0;
  has_begun_ = false;
}

}  // namespace cartan::cli
