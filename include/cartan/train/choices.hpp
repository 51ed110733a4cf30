// Questions with several answers, of which a model finds one the likeliest: log-likelihoods as EleutherAI's
// lm-evaluation-harness takes them (Gao et al. 2021), from JSON lines.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cartan/core/json.hpp"
#include "cartan/data/tokenizer.hpp"
#include "cartan/train/evaluator.hpp"

namespace cartan::train {

struct Choice {
  std::vector<std::int32_t> context, ids;  ///< context: never empty
  /// Of the text, without white space at its beginning; nothing where only ids were given.
  std::optional<Index> bytes, characters;
};

struct Question {
  std::vector<Choice> choices;
  std::optional<Index> label;
  Json id;         ///< passed on; null where there is none
  Index line = 0;  ///< in the file, from 1
};

/// Ids of a context and of what follows it: context and choice are encoded together, the context alone, and
/// what comes after as many ids is the choice. White space at the context's end belongs to the choice, and
/// the template's ids before a text stand before the context, or what ends a text where there is neither.
/// Throws DataError where no id is left for the choice.
Choice encode_choice(const data::Tokenizer& tokenizer, std::string_view context, std::string_view choice);

/// Reads a line: an object with `context` (a text) or `context_ids`, `choices` (a list of texts or of lists
/// of ids, at least two), and perhaps `label` (an index) and `id`; others are passed over. Throws DataError
/// that begins with `where`, as FILE:LINE.
Question parse_question(std::string_view line, std::string_view where, const data::Tokenizer& tokenizer,
                        Index vocab);

struct ChoiceScore {
  double log_likelihood = 0;  ///< natural logarithm, summed over the tokens
  Index tokens = 0;
  std::optional<Index> bytes, characters;
};

/// The first choice with the largest value.
struct Prediction {
  Index sum = 0;                           ///< of the log-likelihood
  Index per_token = 0;                     ///< divided by the tokens
  std::optional<Index> bytes, characters;  ///< divided by the text's length
};

struct Answer {
  std::vector<ChoiceScore> scores;
  Prediction predicted;
  bool is_cut =
      false;  ///< tokens at the beginning were left out: they and the choice are longer than allowed
};

/// Scores of questions. A context and choice of more than longest + 1 tokens (0: any number is allowed) lose
/// their first ones. Throws NumericError where a log-likelihood is not finite, naming the line. Collective
/// over the mesh.
std::vector<Answer> answer(const LoadedModel& model, std::span<const Question> questions, Index longest,
                           const EvaluationPlace& place);

/// One line of output, without its end.
Json to_json(const Question& question, const Answer& answer);

/// How many of the questions with a label were answered as the label says, by each of the lengths.
class Accuracy {
 public:
  void add(const Question& question, const Answer& answer);
  /// questions, labels, cut; and acc, acc_norm (per character, where every question has texts), acc_bytes,
  /// acc_tokens with the standard error of acc as acc_stderr, where there are labels.
  Json summary() const;

 private:
  Index questions_ = 0, labels_ = 0, cut_ = 0, without_text_ = 0;
  Index right_ = 0, right_per_token_ = 0, right_per_byte_ = 0, right_per_character_ = 0;
};

}  // namespace cartan::train
