#include "pattern.hpp"

#include "unicode.hpp"

namespace cartan::data::bpe {

Pattern Pattern::read(const JsonField& field) {
  field.allow({"String", "Regex"});
  const auto text = field.find("String"), expression = field.find("Regex");
  if (text.has_value() == expression.has_value()) field.refuse("expected one of String and Regex");
  if (text) {
    if (text->text().empty()) text->refuse("expected at least one character");
    return literal(text->text());
  }
  try {
    return regex(expression->text());
  } catch (const DataError& error) {
    expression->refuse("{}", error.what());
  }
}

std::optional<Match> Pattern::find(std::string_view text, std::size_t from) const {
  if (regex_) return regex_->find(text, from);
  const std::size_t at = text.find(*text_, from);
  if (at == std::string_view::npos) return std::nullopt;
  return Match{at, at + text_->size()};
}

std::string Pattern::replace(std::string_view text, std::string_view content) const {
  std::string out;
  std::size_t at = 0, copied = 0;
  while (at < text.size()) {
    const std::optional<Match> match = find(text, at);
    if (!match) break;
    if (match->end == match->begin) {
      if (match->begin == text.size()) break;
      at = match->begin + code_point(text, match->begin).length;
      continue;
    }
    out.append(text.substr(copied, match->begin - copied)).append(content);
    at = copied = match->end;
  }
  out += text.substr(copied);
  return out;
}

}  // namespace cartan::data::bpe
