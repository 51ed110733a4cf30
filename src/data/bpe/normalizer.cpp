#include "normalizer.hpp"

#include <algorithm>

#include "pattern.hpp"
#include "unicode.hpp"

namespace cartan::data::bpe {
namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

/// Calls `visit` with each code point.
template <class Visit>
void for_each_code(std::string_view text, Visit visit) {
  for (std::size_t i = 0; i < text.size();) {
    const CodePoint code = code_point(text, i);
    visit(code.value);
    i += code.length;
  }
}

class Normalization final : public Normalizer {
 public:
  Normalization(const NormalForm& form, bool compatibility) : form_(form), compatibility_(compatibility) {}
  void apply(std::string& text, bool) const override { form_.apply(text); }
  /// Compatibility forms can end in white space where the character was none.
  std::optional<std::string> space() const override {
    return compatibility_ ? std::nullopt : std::optional<std::string>(" ");
  }
  bool keeps(std::string_view text) const override { return form_.keeps(text); }

 private:
  const NormalForm& form_;
  bool compatibility_;
};

class Lowercase final : public Normalizer {
 public:
  void apply(std::string& text, bool) const override {
    std::string out;
    out.reserve(text.size());
    for_each_code(text, [&](char32_t code) { append_lower_case(out, code); });
    text = std::move(out);
  }
  std::optional<std::string> space() const override { return " "; }
};

class StripAccents final : public Normalizer {
 public:
  void apply(std::string& text, bool) const override {
    std::string out;
    for_each_code(text, [&](char32_t code) {
      if (!is_mark(code)) append_utf8(out, code);
    });
    text = std::move(out);
  }
  std::optional<std::string> space() const override { return " "; }
  bool keeps(std::string_view text) const override { return is_ascii(text); }
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(std::string& text, bool) const override {
    std::size_t first = text.size(), end = 0;
    for (std::size_t i = 0; i < text.size();) {
      const CodePoint code = code_point(text, i);
      if (!is_white_space(code.value)) {
        first = std::min(first, i);
        end = i + code.length;
      }
      i += code.length;
    }
    if (right_) text.resize(end);
    if (left_) text.erase(0, std::min(first, text.size()));
  }
  std::optional<std::string> space() const override { return std::nullopt; }

 private:
  bool left_, right_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string text) : text_(std::move(text)) {}
  void apply(std::string& text, bool at_start) const override {
    if (at_start && !text.empty()) text.insert(0, text_);
  }
  std::optional<std::string> space() const override { return " "; }

 private:
  std::string text_;
};

class Replace final : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::string& text, bool) const override { text = pattern_.replace(text, content_); }
  std::optional<std::string> space() const override {
    return pattern_.text() == " " ? std::optional<std::string>(content_) : std::nullopt;
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  void apply(std::string& text, bool at_start) const override {
    for (const auto& step : steps_) step->apply(text, at_start);
  }
  std::optional<std::string> space() const override {
    std::string result = " ";
    for (const auto& step : steps_) {
      const std::optional<std::string> now = step->space();
      if (!now || (*now != " " && result != " ")) return std::nullopt;
      if (*now != " ") result = *now;
    }
    return result;
  }
  bool keeps(std::string_view text) const override {
    return std::all_of(steps_.begin(), steps_.end(), [&](const auto& step) { return step->keeps(text); });
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

/// Made once in a process: the tables are large.
template <bool kCompatibility, bool kCompose>
std::unique_ptr<Normalizer> normalization() {
  static const NormalForm form(kCompatibility, kCompose);
  return std::make_unique<Normalization>(form, kCompatibility);
}

template <class T>
std::unique_ptr<Normalizer> make() {
  return std::make_unique<T>();
}

}  // namespace

std::unique_ptr<Normalizer> read_normalizer(const std::optional<JsonField>& maybe, int depth) {
  if (!maybe) return nullptr;
  const JsonField& field = *maybe;
  if (depth > kDeepest) field.refuse("sequences are nested more than {} deep", kDeepest);
  const std::string& type = field.type();
  if (type == "Sequence") {
    field.allow({"type", "normalizers"});
    const JsonField list = field.at("normalizers");
    std::vector<std::unique_ptr<Normalizer>> steps;
    for (std::size_t i = 0; i < list.size(); ++i) steps.push_back(read_normalizer(list.at(i), depth + 1));
    return std::make_unique<NormalizerSequence>(std::move(steps));
  }
  if (type == "Prepend") {
    field.allow({"type", "prepend"});
    return std::make_unique<Prepend>(field.at("prepend").text());
  }
  if (type == "Replace") {
    field.allow({"type", "pattern", "content"});
    return std::make_unique<Replace>(Pattern::read(field.at("pattern")), field.at("content").text());
  }
  if (type == "Strip") {
    field.allow({"type", "strip_left", "strip_right"});
    return std::make_unique<Strip>(field.at("strip_left").flag(), field.at("strip_right").flag());
  }
  using Maker = std::unique_ptr<Normalizer> (*)();
  constexpr std::pair<std::string_view, Maker> kPlain[] = {
      {"NFC", normalization<false, true>}, {"NFD", normalization<false, false>},
      {"NFKC", normalization<true, true>}, {"NFKD", normalization<true, false>},
      {"Lowercase", make<Lowercase>},      {"StripAccents", make<StripAccents>},
  };
  for (const auto& [name, maker] : kPlain) {
    if (type != name) continue;
    field.allow({"type"});
    return maker();
  }
  field.at("type").refuse(
      "the normalizer {} is not supported; supported are Lowercase, NFC, NFD, NFKC, NFKD, Prepend, Replace, "
      "Sequence, Strip and StripAccents",
      type);
}

}  // namespace cartan::data::bpe
