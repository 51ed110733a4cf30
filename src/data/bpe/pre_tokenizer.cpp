#include "pre_tokenizer.hpp"

#include <algorithm>
#include <array>
#include <deque>

#include "normalizer.hpp"
#include "unicode.hpp"

namespace cartan::data::bpe {
namespace {

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Patterns of which is known where they never match across: none has an alternative that goes from anything
/// but white space to a space, or from a letter or number to a line feed. In all but GPT-2's, line feeds end
/// their piece (\s*[\r\n]+ comes before \s+(?!\S)), and no alternative goes from one to a letter.
struct KnownPattern {
  std::string_view text;
  bool after_newline;
};
constexpr std::array kKnownPatterns{
    KnownPattern{kGpt2, false},
    KnownPattern{R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", false},
    KnownPattern{
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
        true},
    KnownPattern{
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
        true},
    KnownPattern{
        R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
        true},
};

CutPlaces cuts_of(std::string_view pattern) {
  for (const KnownPattern& known : kKnownPatterns)
    if (pattern == known.text) return {true, true, known.after_newline};
  return {};
}

SplitBehavior read_behavior(const JsonField& field) {
  const std::string& name = field.text();
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  field.refuse(
      "the behavior {} is not known; expected Removed, Isolated, MergedWithPrevious, MergedWithNext or "
      "Contiguous",
      name);
}

}  // namespace

PreTokenizer::PreTokenizer(const std::optional<JsonField>& field) {
  if (field) read(*field, 0);
}

void PreTokenizer::read(const JsonField& field, int depth) {
  if (depth > kDeepest) field.refuse("sequences are nested more than {} deep", kDeepest);
  const std::string& type = field.type();
  if (is_byte_level_) field.refuse("{} comes after ByteLevel, which must be the last step", type);
  Step step;
  if (type == "Sequence") {
    field.allow({"type", "pretokenizers"});
    const JsonField list = field.at("pretokenizers");
    for (std::size_t i = 0; i < list.size(); ++i) read(list.at(i), depth + 1);
    return;
  }
  if (type == "Split") {
    step = read_split(field);
  } else if (type == "ByteLevel") {
    step = read_byte_level(field);
    is_byte_level_ = true;
  } else if (type == "Metaspace") {
    step = read_metaspace(field);
    if (step.space != " ") space_ = step.space;
  } else if (type == "Digits") {
    field.allow({"type", "individual_digits"});
    step.finder = Predicate(is_numeric);
    if (!field.at("individual_digits").flag()) step.behavior = SplitBehavior::contiguous;
  } else if (type == "Punctuation") {
    field.allow({"type", "behavior"});
    step.finder = Predicate(is_punctuation);
    if (const auto behavior = field.find("behavior")) step.behavior = read_behavior(*behavior);
    step.cuts = {};
  } else if (type == "WhitespaceSplit") {
    field.allow({"type"});
    step.finder = Predicate(is_white_space);
    step.behavior = SplitBehavior::removed;
    step.cuts = {};
  } else if (type == "Whitespace") {
    field.allow({"type"});
    step.finder = Pattern::regex(R"(\w+|[^\w\s]+)");
    step.behavior = SplitBehavior::removed;
    step.invert = true;
    step.cuts = {};
  } else if (type == "CharDelimiterSplit") {
    field.allow({"type", "delimiter"});
    if (field.at("delimiter").text().empty()) field.at("delimiter").refuse("expected one character");
    step.finder = Pattern::literal(field.at("delimiter").text());
    step.behavior = SplitBehavior::removed;
    step.cuts = {};
  } else {
    field.at("type").refuse(
        "the pre-tokenizer {} is not supported; supported are ByteLevel, CharDelimiterSplit, Digits, "
        "Metaspace, "
        "Punctuation, Sequence, Split, Whitespace and WhitespaceSplit",
        type);
  }
  steps_.push_back(std::move(step));
}

PreTokenizer::Step PreTokenizer::read_split(const JsonField& field) const {
  field.allow({"type", "pattern", "behavior", "invert"});
  Step step;
  step.finder = Pattern::read(field.at("pattern"));
  step.behavior = read_behavior(field.at("behavior"));
  step.invert = field.flag_or("invert", false);
  const auto expression = field.at("pattern").find("Regex");
  step.cuts =
      expression && step.behavior == SplitBehavior::isolated ? cuts_of(expression->text()) : CutPlaces{};
  return step;
}

PreTokenizer::Step PreTokenizer::read_byte_level(const JsonField& field) const {
  field.allow({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  Step step;
  if (field.at("add_prefix_space").flag()) {
    step.prefix = Step::Prefix::always;
    step.prefix_text.assign(1, ' ');
  }
  field.flag_or("trim_offsets", true);  // of offsets, which nobody asks for here
  if (field.flag_or("use_regex", true)) {
    step.finder = Pattern::regex(kGpt2);
    step.cuts = cuts_of(kGpt2);
  }
  return step;
}

PreTokenizer::Step PreTokenizer::read_metaspace(const JsonField& field) const {
  field.allow({"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
  Step step;
  step.space = field.at("replacement").text();
  if (step.space.empty() || code_point(step.space, 0).length != step.space.size())
    field.at("replacement").refuse("expected one character");
  step.prefix_text = step.space;
  const std::string scheme = field.text_or("prepend_scheme", "always");
  if (scheme == "always")
    step.prefix = Step::Prefix::always;
  else if (scheme == "first")
    step.prefix = Step::Prefix::first;
  else if (scheme != "never")
    field.at("prepend_scheme").refuse("{} is not known; expected always, first or never", scheme);
  // Files of older versions have this flag alone.
  if (!field.flag_or("add_prefix_space", true)) step.prefix = Step::Prefix::never;
  if (field.flag_or("split", true)) {
    step.finder = Pattern::literal(step.space);
    step.behavior = SplitBehavior::merged_with_next;
  }
  step.cuts = {true, false, false};
  return step;
}

std::optional<Match> PreTokenizer::find(const Step& step, std::string_view text, std::size_t from) {
  if (const auto* pattern = std::get_if<Pattern>(&*step.finder)) return pattern->find(text, from);
  const Predicate holds = std::get<Predicate>(*step.finder);
  while (from < text.size()) {
    const CodePoint code = code_point(text, from);
    if (holds(code.value)) return Match{from, from + code.length};
    from += code.length;
  }
  return std::nullopt;
}

std::vector<PreTokenizer::Span> PreTokenizer::spans(const Step& step, std::string_view text) {
  std::vector<Span> spans;
  std::size_t done = 0, from = 0;
  while (from <= text.size()) {
    const std::optional<Match> match = find(step, text, from);
    if (!match) break;
    if (match->begin > done) spans.push_back({done, match->begin, step.invert});
    if (match->end > match->begin) spans.push_back({match->begin, match->end, !step.invert});
    done = match->end;
    from = match->end > match->begin ? match->end
           : done < text.size()      ? done + code_point(text, done).length
                                     : done + 1;
  }
  if (done < text.size()) spans.push_back({done, text.size(), step.invert});
  return spans;
}

std::vector<PreTokenizer::Span> PreTokenizer::pieces(const Step& step, const std::vector<Span>& spans) {
  std::vector<Span> out;
  bool before = false;  // whether the span before was a match
  switch (step.behavior) {
    case SplitBehavior::isolated:
      return spans;
    case SplitBehavior::removed:
      std::copy_if(spans.begin(), spans.end(), std::back_inserter(out),
                   [](const Span& s) { return !s.is_match; });
      break;
    case SplitBehavior::merged_with_previous:
    case SplitBehavior::contiguous:
      for (const Span& span : spans) {
        const bool joins =
            step.behavior == SplitBehavior::contiguous ? span.is_match == before : span.is_match && !before;
        if (joins && !out.empty())
          out.back().end = span.end;
        else
          out.push_back(span);
        before = span.is_match;
      }
      break;
    case SplitBehavior::merged_with_next:
      for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
        if (span->is_match && !before && !out.empty())
          out.back().begin = span->begin;
        else
          out.push_back(*span);
        before = span->is_match;
      }
      std::reverse(out.begin(), out.end());
      break;
  }
  return out;
}

void PreTokenizer::split(const Step& step, std::string_view text,
                         const std::function<void(std::string_view)>& sink) {
  const auto* pattern = std::get_if<Pattern>(&*step.finder);
  if (pattern == nullptr || step.behavior != SplitBehavior::isolated) {
    for (const Span& piece : pieces(step, spans(step, text)))
      sink(text.substr(piece.begin, piece.end - piece.begin));
    return;
  }
  // The same without a list of spans: this is where most of the time goes.
  std::size_t done = 0, from = 0;
  while (from < text.size()) {
    const std::optional<Match> match = pattern->find(text, from);
    if (!match) break;
    if (match->begin > done) sink(text.substr(done, match->begin - done));
    if (match->end > match->begin) sink(text.substr(match->begin, match->end - match->begin));
    done = from = match->end;
    if (match->end == match->begin && done < text.size()) from += code_point(text, done).length;
  }
  if (done < text.size()) sink(text.substr(done));
}

void PreTokenizer::run(std::string_view text, bool at_start, bool goes_on,
                       const std::function<void(std::string_view)>& sink) const {
  if (text.empty()) return;
  std::deque<std::string> rewritten;
  /// `step` on one piece; `is_first`: it begins where the text does.
  const auto apply = [&](const Step& step, std::string_view piece, bool is_first,
                         const std::function<void(std::string_view)>& next) {
    const bool replaces = step.space != " ";
    bool prefixes =
        step.prefix == Step::Prefix::always || (step.prefix == Step::Prefix::first && is_first && at_start);
    if (goes_on && is_first) prefixes = false;
    prefixes = prefixes && !piece.starts_with(step.prefix_text) && !(replaces && piece.starts_with(' '));
    if (prefixes || (replaces && piece.find(' ') != std::string_view::npos)) {
      std::string& out = rewritten.emplace_back(prefixes ? step.prefix_text : "");
      if (!replaces) {
        out += piece;
      } else {
        for (const char c : piece) c == ' ' ? out += step.space : out += c;
      }
      piece = out;
    }
    if (step.finder)
      split(step, piece, next);
    else
      next(piece);
  };
  std::vector<std::string_view> list{text}, longer;
  for (std::size_t s = 0; s + 1 < steps_.size(); ++s) {
    for (std::size_t i = 0; i < list.size(); ++i)
      apply(steps_[s], list[i], i == 0, [&](std::string_view piece) {
        if (!piece.empty()) longer.push_back(piece);
      });
    list.swap(longer);
    longer.clear();
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (steps_.empty())
      sink(list[i]);
    else
      apply(steps_.back(), list[i], i == 0, sink);
  }
}

CutPlaces PreTokenizer::cut_places() const {
  CutPlaces all{true, true, true};
  for (const Step& step : steps_) {
    all.before_space = all.before_space && step.cuts.before_space;
    all.before_newline = all.before_newline && step.cuts.before_newline;
    all.after_newline = all.after_newline && step.cuts.after_newline;
    // Pieces in the middle get the prefix as well.
    if (step.prefix == Step::Prefix::always && steps_.size() > 1) return {};
  }
  return all;
}

}  // namespace cartan::data::bpe
