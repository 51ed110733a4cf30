#include "decoder.hpp"

#include <algorithm>
#include <utility>

#include "byte_level.hpp"
#include "cartan/data/utf8.hpp"
#include "normalizer.hpp"
#include "pattern.hpp"
#include "unicode.hpp"

namespace cartan::data::bpe {
namespace {

/// Each token for itself.
class MapStep : public DecodeStep {
 public:
  explicit MapStep(std::function<std::string(const std::string&)> map) : map_(std::move(map)) {}
  void push(std::string token, std::vector<std::string>& out) override { out.push_back(map_(token)); }

 private:
  std::function<std::string(const std::string&)> map_;
};

/// A step after a join sees one token, which is whole at the end only.
class WholeStep : public DecodeStep {
 public:
  explicit WholeStep(std::unique_ptr<DecodeStep> step) : step_(std::move(step)) {}
  void push(std::string token, std::vector<std::string>&) override { whole_ += token; }
  void finish(std::vector<std::string>& out) override {
    step_->push(std::exchange(whole_, {}), out);
    step_->finish(out);
  }

 private:
  std::unique_ptr<DecodeStep> step_;
  std::string whole_;
};

/// <0x0A> and the like are bytes. A run of them that is no valid UTF-8 becomes one U+FFFD a byte, so nothing
/// of it is known before it ends.
class ByteFallbackStep : public DecodeStep {
 public:
  void push(std::string token, std::vector<std::string>& out) override {
    const bool has_form = token.size() == 6 && token.starts_with("<0x") && token.back() == '>';
    if (has_form && token.substr(3, 2).find_first_not_of("0123456789abcdefABCDEF") == std::string::npos) {
      run_ += static_cast<char>(std::stoi(token.substr(3, 2), nullptr, 16));
      return;
    }
    finish(out);
    out.push_back(std::move(token));
  }
  void finish(std::vector<std::string>& out) override {
    if (run_.empty()) return;
    if (is_valid_utf8(run_))
      out.push_back(run_);
    else
      out.insert(out.end(), run_.size(), "\xEF\xBF\xBD");
    run_.clear();
  }

 private:
  std::string run_;
};

/// The replacement becomes a space, in the first token nothing.
class MetaspaceStep : public DecodeStep {
 public:
  MetaspaceStep(std::string replacement, bool drops) : replacement_(std::move(replacement)), drops_(drops) {}
  void push(std::string token, std::vector<std::string>& out) override {
    out.push_back(Pattern::literal(replacement_).replace(token, drops_ ? "" : " "));
    drops_ = false;
  }

 private:
  std::string replacement_;
  bool drops_;
};

std::string strip(const std::string& token, const std::string& content, std::size_t start, std::size_t stop) {
  std::string_view rest = token;
  for (std::size_t i = 0; i < start && rest.starts_with(content); ++i) rest.remove_prefix(content.size());
  // Both ends are counted in the whole token, so they may meet.
  std::string_view front = token;
  for (std::size_t i = 0; i < stop && front.ends_with(content); ++i) front.remove_suffix(content.size());
  const std::size_t begin = token.size() - rest.size();
  return begin < front.size() ? std::string(front.substr(begin)) : std::string();
}

/// The beginning of a joined text loses up to `start` times `content`.
class StripStartStep : public DecodeStep {
 public:
  StripStartStep(std::string content, std::size_t start) : content_(std::move(content)), start_(start) {}
  void push(std::string token, std::vector<std::string>& out) override {
    if (start_ == 0) return out.push_back(std::move(token));
    held_ += token;
    while (start_ > 0 && held_.starts_with(content_)) {
      held_.erase(0, content_.size());
      --start_;
    }
    if (start_ > 0 && content_.starts_with(held_)) return;  // empty, or the beginning of a character
    start_ = 0;
    out.push_back(std::exchange(held_, {}));
  }
  void finish(std::vector<std::string>& out) override {
    if (!held_.empty()) out.push_back(std::exchange(held_, {}));
  }

 private:
  std::string content_;
  std::size_t start_;
  std::string held_;
};

std::string bytes_of(const std::string& token) {
  // An added token may have characters that stand for no byte; it is then meant as it is.
  return byte_level_bytes(token).value_or(token);
}

}  // namespace

Decoder::Decoder(const std::optional<JsonField>& field) {
  if (field) {
    read(*field, 0);
    return;
  }
  // Without a decoder, tokens are words.
  makers_.push_back([](bool at_start, bool) {
    auto is_first = std::make_shared<bool>(at_start);
    return std::make_unique<MapStep>([is_first](const std::string& token) {
      return std::exchange(*is_first, false) ? token : ' ' + token;
    });
  });
  is_fused_.push_back(false);
}

void Decoder::read(const JsonField& field, int depth) {
  if (depth > kDeepest) field.refuse("sequences are nested more than {} deep", kDeepest);
  const std::string& type = field.type();
  if (type == "Sequence") {
    field.allow({"type", "decoders"});
    const JsonField list = field.at("decoders");
    for (std::size_t i = 0; i < list.size(); ++i) read(list.at(i), depth + 1);
    return;
  }
  if (type == "Fuse") {
    field.allow({"type"});
    fuses_ = true;
    return;
  }
  if (is_bytes_) field.refuse("{} comes after ByteLevel, which must be the last step", type);
  Maker maker;
  bool streams_fused = false;
  if (type == "ByteLevel") {
    field.allow({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    if (fuses_) field.refuse("ByteLevel after Fuse is not supported");
    is_bytes_ = true;
    maker = [](bool, bool) { return std::make_unique<MapStep>(bytes_of); };
  } else if (type == "ByteFallback") {
    field.allow({"type"});
    maker = [](bool, bool) { return std::make_unique<ByteFallbackStep>(); };
  } else if (type == "Metaspace") {
    field.allow({"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
    const std::string replacement = field.at("replacement").text();
    if (replacement.empty()) field.at("replacement").refuse("expected one character");
    const bool drops =
        field.text_or("prepend_scheme", "always") != "never" && field.flag_or("add_prefix_space", true);
    maker = [=](bool at_start, bool) {
      return std::make_unique<MetaspaceStep>(replacement, drops && at_start);
    };
  } else if (type == "Replace") {
    field.allow({"type", "pattern", "content"});
    const auto pattern = std::make_shared<const Pattern>(Pattern::read(field.at("pattern")));
    const std::string content = field.at("content").text();
    maker = [=](bool, bool) {
      return std::make_unique<MapStep>(
          [=](const std::string& token) { return pattern->replace(token, content); });
    };
  } else if (type == "Strip") {
    field.allow({"type", "content", "start", "stop"});
    constexpr std::int64_t kMost = 1 << 20;
    const std::string content = field.at("content").text();
    const auto start = static_cast<std::size_t>(field.at("start").number(kMost));
    const auto stop = static_cast<std::size_t>(field.at("stop").number(kMost));
    if (content.empty() || code_point(content, 0).length != content.size())
      field.at("content").refuse("expected one character");
    streams_fused = stop == 0;
    maker = [=](bool at_start, bool is_fused) -> std::unique_ptr<DecodeStep> {
      const std::size_t front = is_fused && !at_start ? 0 : start;
      if (is_fused && stop == 0) return std::make_unique<StripStartStep>(content, front);
      return std::make_unique<MapStep>(
          [=](const std::string& token) { return strip(token, content, front, stop); });
    };
  } else {
    field.at("type").refuse(
        "the decoder {} is not supported; supported are ByteFallback, ByteLevel, Fuse, Metaspace, Replace, "
        "Sequence "
        "and Strip",
        type);
  }
  if (fuses_ && !streams_fused)
    maker = [inner = std::move(maker)](bool at_start, bool is_fused) {
      return std::make_unique<WholeStep>(inner(at_start, is_fused));
    };
  makers_.push_back(std::move(maker));
  is_fused_.push_back(fuses_);
}

std::vector<std::unique_ptr<DecodeStep>> Decoder::start(bool at_start) const {
  std::vector<std::unique_ptr<DecodeStep>> steps;
  for (std::size_t i = 0; i < makers_.size(); ++i) steps.push_back(makers_[i](at_start, is_fused_[i]));
  return steps;
}

}  // namespace cartan::data::bpe
