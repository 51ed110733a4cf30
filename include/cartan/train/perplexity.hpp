// Perplexity of texts that are longer than the model sees at once, by windows that move on by a stride: each
// token is predicted once, from at least length - stride tokens before it, but at the beginning of a text. It
// is the method that Hugging Face documents for models of fixed length (transformers, "Perplexity of
// fixed-length models").
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "cartan/train/evaluator.hpp"

namespace cartan::train {

struct WindowOptions {
  Index length = 1024;  ///< tokens of a window
  Index stride = 1024;  ///< from 1 to length
  Index most = 0;       ///< windows that are looked at; 0: all
};

/// A window over the ids [begin, end) of a text, which predicts those from first_target on.
struct Window {
  Index begin = 0, end = 0;
  Index first_target = 0;
  friend bool operator==(const Window&, const Window&) = default;
};

/// Windows begin at 0, stride, 2 stride, ... up to the first one that reaches the text's end. Each predicts
/// the tokens that none before it held; its own first token, before which it sees nothing, is never
/// predicted.
std::vector<Window> windows_of(Index tokens, Index length, Index stride);

struct WindowedLoss {
  LossSum loss;
  Index texts = 0, tokens = 0, windows = 0;
};

/// Fills in the ids of the next text; false: there is none.
using NextText = std::function<bool(std::vector<std::int32_t>&)>;

/// The loss over all texts, each with windows of its own. `next` gives the same texts on every rank. Throws
/// DataError for an id outside of the vocabulary. Collective over the mesh.
WindowedLoss evaluate_texts(const LoadedModel& model, const NextText& next, const WindowOptions& options,
                            const EvaluationPlace& place);

/// Runs of bytes other than ASCII blanks, as wc -w counts them.
Index count_words(std::string_view text);

}  // namespace cartan::train
