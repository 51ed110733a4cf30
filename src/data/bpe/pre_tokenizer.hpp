// The pre-tokenizer of tokenizer.json: cuts a stretch of text into pieces that are encoded each for itself.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "json_field.hpp"
#include "pattern.hpp"

namespace cartan::data::bpe {

/// What becomes of the matches of a split: the pieces they make.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// Places at which a text can be cut into parts that are cut into pieces each for itself, with the same
/// result.
struct CutPlaces {
  bool before_space = false;    ///< before a space, after anything but white space
  bool before_newline = false;  ///< before a line feed, after a letter or number
  bool after_newline = false;   ///< after a line feed, before a letter
};

/// Immutable.
class PreTokenizer {
 public:
  /// No steps: the text is one piece.
  PreTokenizer() = default;
  /// Throws DataError for types and settings that are not supported.
  explicit PreTokenizer(const std::optional<JsonField>& field);

  /// Calls `sink` with each piece in order; a piece is valid during the call only. `at_start`: nothing of
  /// this document comes before. `goes_on`: the text continues a stretch, so that nothing is put before it.
  void run(std::string_view text, bool at_start, bool goes_on,
           const std::function<void(std::string_view)>& sink) const;

  /// Pieces are read byte by byte, not character by character (ByteLevel).
  bool is_byte_level() const { return is_byte_level_; }
  /// The text stays one piece.
  bool keeps_whole() const { return steps_.empty() || (steps_.size() == 1 && !steps_[0].finder); }
  /// The character that stands for a space in a piece, where it is not a space (Metaspace).
  const std::string& space() const { return space_; }
  CutPlaces cut_places() const;

 private:
  using Predicate = bool (*)(char32_t);
  /// A step puts something before a piece, replaces spaces, and splits; each of it is optional.
  struct Step {
    enum class Prefix { never, first, always } prefix = Prefix::never;
    std::string prefix_text;
    std::string space = " ";                                                ///< replaces each space
    std::optional<std::variant<Pattern, Predicate>> finder = std::nullopt;  ///< none: no split
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;
    CutPlaces cuts = {true, true, true};
  };
  struct Span {
    std::size_t begin, end;
    bool is_match;
  };

  void read(const JsonField& field, int depth);
  Step read_split(const JsonField& field) const;
  Step read_byte_level(const JsonField& field) const;
  Step read_metaspace(const JsonField& field) const;
  static std::optional<Match> find(const Step& step, std::string_view text, std::size_t from);
  static std::vector<Span> spans(const Step& step, std::string_view text);
  static std::vector<Span> pieces(const Step& step, const std::vector<Span>& spans);
  static void split(const Step& step, std::string_view text,
                    const std::function<void(std::string_view)>& sink);

  std::vector<Step> steps_;
  std::string space_ = " ";
  bool is_byte_level_ = false;
};

}  // namespace cartan::data::bpe
