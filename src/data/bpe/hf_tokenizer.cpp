// The way of a text: added tokens are cut out, what lies between them is normalized, cut into pieces, and
// each piece is merged.
#include "hf_tokenizer.hpp"

#include <algorithm>
#include <unordered_map>

#include "added_tokens.hpp"
#include "bpe_model.hpp"
#include "cartan/data/utf8.hpp"
#include "decoder.hpp"
#include "end_token.hpp"
#include "json_field.hpp"
#include "normalizer.hpp"
#include "post_processor.hpp"
#include "pre_tokenizer.hpp"
#include "unicode.hpp"

namespace cartan::data::bpe {
namespace {

bool has_white_space(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const CodePoint code = code_point(text, i);
    if (is_white_space(code.value)) return true;
    i += code.length;
  }
  return false;
}

class HfTokenizer final : public Tokenizer {
 public:
  HfTokenizer(const JsonField& root, std::string_view file, std::string_view name)
      : name_(name),
        normalizer_(read_normalizer(root.find("normalizer"))),
        pre_tokenizer_(root.find("pre_tokenizer")),
        model_(root.at("model"), pre_tokenizer_.is_byte_level()),
        decoder_(root.find("decoder")) {
    root.allow({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                "post_processor", "decoder", "model"});
    if (const auto version = root.find("version"); version && version->text() != "1.0")
      version->refuse("version {} is not supported; expected 1.0", version->text());
    vocab_size_ = static_cast<Index>(model_.vocabulary().ids());
    if (const auto list = root.find("added_tokens"))
      add_tokens(read_added_tokens(*list, model_.vocabulary()));
    const auto is_token = [this](std::int32_t id) { return has(id); };
    template_ = read_post_processor(root.find("post_processor"), is_token);
    end_ = find_end_token(
        file, [this](std::string_view content) { return token_id(content); },
        [this](std::string_view content) { return added_id(content); }, is_token);
    find_words();
    find_cuts();
  }

  std::string_view name() const override { return name_; }
  Index vocab_size() const override { return vocab_size_; }
  std::int32_t end_of_text() const override {
    if (!end_)
      throw ConfigError(
          "data.tokenizer = {}: nothing says which token ends a text; put a tokenizer_config.json with "
          "{{\"eos_token\": \"...\"}} beside the tokenizer.json",
          name_);
    return *end_;
  }
  std::span<const std::int32_t> ids_before() const override { return template_.before; }
  std::span<const std::int32_t> ids_after() const override { return template_.after; }
  std::optional<std::int32_t> token_id(std::string_view content) const override {
    if (const auto added = added_id(content)) return added;
    const std::int32_t id = model_.vocabulary().find(content);
    return id == kNoToken ? std::nullopt : std::optional(id);
  }

  void append_ids(std::string_view text, bool at_start, std::vector<std::int32_t>& ids) const override {
    std::string repaired;
    if (!is_valid_utf8(text)) {
      repaired = valid_utf8(text);
      text = repaired;
    }
    raw_tokens_.for_each_part(text, [&](const TokenFinder::Part& part) {
      if (part.id != kNoToken)
        ids.push_back(part.id);
      else
        append_stretch(part.text, at_start, part.text.data() == text.data(), normal_tokens_, ids);
    });
  }

  void append_ids_between(std::string_view text, std::optional<std::int32_t> before,
                          std::optional<std::int32_t> after, std::vector<std::int32_t>& ids) const override {
    std::string repaired;
    if (!is_valid_utf8(text)) {
      repaired = valid_utf8(text);
      text = repaired;
    }
    if (before && takes_space(*before, &AddedToken::rstrip)) text.remove_prefix(white_space_end(text, 0));
    if (after && takes_space(*after, &AddedToken::lstrip))
      text = text.substr(0, white_space_begin(text, text.size(), 0));
    raw_plain_tokens_.for_each_part(text, [&](const TokenFinder::Part& part) {
      if (part.id != kNoToken)
        ids.push_back(part.id);
      else
        append_stretch(part.text, true, !before && part.text.data() == text.data(), normal_plain_tokens_,
                       ids);
    });
  }

  std::size_t stable_prefix(std::string_view text) const override;

  std::unique_ptr<TokenDecoder> decoder(const DecodeOptions& options) const override {
    return std::make_unique<Decoding>(*this, options);
  }

 private:
  class Decoding final : public TokenDecoder {
   public:
    Decoding(const HfTokenizer& owner, const DecodeOptions& options)
        : owner_(owner),
          skip_special_(options.skip_special),
          steps_(owner.decoder_.start(options.at_start)) {}

    std::string push(std::int32_t id) override {
      const auto added = owner_.added_.find(id);
      if (added == owner_.added_.end() && !owner_.model_.vocabulary().has(id))
        throw DataError("no token of {} has the id {} (there are {} ids)", owner_.name_, id,
                        owner_.vocab_size_);
      const bool is_added = added != owner_.added_.end();
      if (is_added && added->second.special && skip_special_) return {};
      tokens_.clear();
      tokens_.emplace_back(is_added ? std::string_view(added->second.content)
                                    : owner_.model_.vocabulary().content(id));
      return run(0);
    }

    std::string finish() override {
      std::string text;
      for (std::size_t s = 0; s < steps_.size(); ++s) {
        tokens_.clear();
        steps_[s]->finish(tokens_);
        text += run(s + 1);
      }
      return text;
    }

   private:
    /// Sends tokens_ through the steps from `first` on.
    std::string run(std::size_t first) {
      for (std::size_t s = first; s < steps_.size() && !tokens_.empty(); ++s) {
        std::vector<std::string> out;
        for (std::string& token : tokens_) steps_[s]->push(std::move(token), out);
        tokens_.swap(out);
      }
      std::string text;
      for (const std::string& token : tokens_) text += token;
      return text;
    }

    const HfTokenizer& owner_;
    bool skip_special_;
    std::vector<std::unique_ptr<DecodeStep>> steps_;
    std::vector<std::string> tokens_;
  };

  std::optional<std::int32_t> added_id(std::string_view content) const {
    const auto added = ids_of_added_.find(std::string(content));
    return added == ids_of_added_.end() ? std::nullopt : std::optional(added->second);
  }
  bool takes_space(std::int32_t id, bool AddedToken::*side) const {
    const auto added = added_.find(id);
    return added != added_.end() && added->second.*side;
  }
  bool has(std::int32_t id) const { return added_.count(id) > 0 || model_.vocabulary().has(id); }

  void add_tokens(const std::vector<AddedToken>& tokens) {
    std::vector<std::pair<AddedToken, std::string>> raw, normal;
    for (const AddedToken& token : tokens) {
      std::string content = token.content;
      if (token.normalized && normalizer_) normalizer_->apply(content, true);
      (token.normalized ? normal : raw).emplace_back(token, content);
      added_.emplace(token.id, token);
      ids_of_added_.emplace(token.content, token.id);
      vocab_size_ = std::max(vocab_size_, static_cast<Index>(token.id) + 1);
      tokens_have_space_ = tokens_have_space_ || has_white_space(token.content) || has_white_space(content) ||
                           (token.normalized && content != token.content);
      tokens_take_space_ = tokens_take_space_ || token.lstrip;
    }
    raw_tokens_ = TokenFinder(raw);
    normal_tokens_ = TokenFinder(normal);
    const auto is_special = [](const std::pair<AddedToken, std::string>& token) {
      return token.first.special;
    };
    std::erase_if(raw, is_special);
    std::erase_if(normal, is_special);
    raw_plain_tokens_ = TokenFinder(raw);
    normal_plain_tokens_ = TokenFinder(normal);
  }

  /// A stretch between added tokens, in which normalized ones, `tokens`, may be; `is_first`: it begins where
  /// the text does.
  void append_stretch(std::string_view text, bool at_start, bool is_first, const TokenFinder& tokens,
                      std::vector<std::int32_t>& ids) const {
    std::string normal;
    const bool goes_on = is_first && !at_start;
    if (normalizer_ && !normalizer_->keeps(text)) {
      normal = text;
      normalizer_->apply(normal, !goes_on);
      text = normal;
    }
    const std::function<void(std::string_view)> encode_piece = [&](std::string_view piece) {
      append_words(piece, ids);
    };
    if (tokens.empty()) return pre_tokenizer_.run(text, at_start && is_first, goes_on, encode_piece);
    tokens.for_each_part(text, [&](const TokenFinder::Part& part) {
      const bool begins = is_first && part.text.data() == text.data();
      if (part.id != kNoToken)
        ids.push_back(part.id);
      else
        pre_tokenizer_.run(part.text, at_start && begins, goes_on && begins, encode_piece);
    });
  }

  /// Words between which no merge is possible are encoded each for itself: that is the same, and faster.
  void append_words(std::string_view piece, std::vector<std::int32_t>& ids) const {
    if (word_mark_.empty()) return model_.append_ids(piece, ids);
    std::size_t begin = 0;
    while (begin < piece.size()) {
      std::size_t end = begin;
      while (piece.substr(end).starts_with(word_mark_)) end += word_mark_.size();
      end = std::min(piece.find(word_mark_, end), piece.size());
      model_.append_ids(piece.substr(begin, end - begin), ids);
      begin = end;
    }
  }

  void find_words() {
    constexpr std::string_view kMark = "\xE2\x96\x81";
    if (pre_tokenizer_.keeps_whole() && model_.begins_words(kMark)) word_mark_ = kMark;
  }

  void find_cuts() {
    const std::optional<std::string> normal_space = normalizer_ ? normalizer_->space() : " ";
    // A token with white space could lie across the place; a cut beside one would hide what it takes along.
    if (!normal_space || tokens_have_space_) return;
    if (!pre_tokenizer_.keeps_whole()) {
      if (*normal_space == " ") cuts_ = pre_tokenizer_.cut_places();
    } else {
      const std::string& space = *normal_space == " " ? pre_tokenizer_.space() : *normal_space;
      cuts_.before_space = !word_mark_.empty() && space == word_mark_;
    }
    if (tokens_take_space_) cuts_.after_newline = false;
  }

  std::string name_;
  std::unique_ptr<Normalizer> normalizer_;
  PreTokenizer pre_tokenizer_;
  BpeModel model_;
  Decoder decoder_;
  Template template_;
  std::unordered_map<std::int32_t, AddedToken> added_;
  std::unordered_map<std::string, std::int32_t> ids_of_added_;
  TokenFinder raw_tokens_, normal_tokens_;
  TokenFinder raw_plain_tokens_, normal_plain_tokens_;  ///< without special tokens
  bool tokens_have_space_ = false, tokens_take_space_ = false;
  Index vocab_size_ = 0;
  std::optional<std::int32_t> end_;
  std::string word_mark_;  ///< where texts are not cut into pieces, but could be before this
  CutPlaces cuts_;
};

std::size_t HfTokenizer::stable_prefix(std::string_view text) const {
  if (!cuts_.before_space && !cuts_.before_newline && !cuts_.after_newline) return 0;
  /// The valid character that begins at `at`.
  const auto character_at = [&](std::size_t at) -> std::optional<CodePoint> {
    const auto lead = static_cast<unsigned char>(text[at]);
    const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    const std::string_view character = text.substr(at, length);
    if (character.size() < length || !is_valid_utf8(character)) return std::nullopt;
    return code_point(character, 0);
  };
  for (std::size_t at = text.size(); at-- > 1;) {
    const char next = text[at];
    const bool is_space = next == ' ' && cuts_.before_space;
    const bool is_newline = next == '\n' && cuts_.before_newline;
    const bool is_after_newline = text[at - 1] == '\n' && cuts_.after_newline;
    if (!is_space && !is_newline && !is_after_newline) continue;
    std::size_t last = at - 1;
    while (last > 0 && at - last < 4 && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
    const std::optional<CodePoint> before = character_at(last);
    if (!before || last + before->length != at) continue;
    const std::optional<CodePoint> after = is_after_newline ? character_at(at) : std::nullopt;
    const bool fits = (is_space && !is_white_space(before->value)) ||
                      (is_newline && (is_letter(before->value) || is_numeric(before->value))) ||
                      (is_after_newline && after && is_letter(after->value));
    if (!fits) continue;
    const std::string_view prefix = text.substr(0, at);
    if (!word_mark_.empty() && prefix.ends_with(word_mark_)) continue;
    if (raw_tokens_.ends_with_token(prefix) || normal_tokens_.ends_with_token(prefix)) continue;
    return at;
  }
  return 0;
}

}  // namespace

std::unique_ptr<Tokenizer> make_hf_tokenizer(std::string_view json, std::string_view file,
                                             std::string_view name) {
  SortedJson document;
  try {
    document = SortedJson::parse(json);
  } catch (const nlohmann::json::parse_error& error) {
    const std::size_t end = std::min(error.byte, json.size());
    throw DataError("{}: not valid JSON near line {} (byte {} of {})", file,
                    1 + std::count(json.begin(), json.begin() + static_cast<std::ptrdiff_t>(end), '\n'),
                    error.byte, json.size());
  } catch (const nlohmann::json::exception& error) {  // a number that no type holds
    throw DataError("{}: not valid JSON: {}", file, error.what());
  }
  return std::make_unique<HfTokenizer>(JsonField(document, file), file, name);
}

}  // namespace cartan::data::bpe
