#include "cartan/train/perplexity.hpp"

#include <algorithm>

#include "cartan/core/narrow.hpp"

namespace cartan::train {
namespace {

// Windows that are in memory at a time have about so many tokens.
constexpr Index kTokensAtOnce = Index{1} << 21;

bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/// Adds up windows in blocks, which do not depend on the ranks.
class Blocks {
 public:
  Blocks(const LoadedModel& model, const EvaluationPlace& place) : model_(model), place_(place) {}

  void add(TargetSequence sequence) {
    tokens_ += std::ssize(sequence.ids);
    targets_ += data::counted_targets(sequence.targets);
    waiting_.push_back(std::move(sequence));
    if (tokens_ >= kTokensAtOnce) flush();
  }
  LossSum finish() {
    flush();
    return {loss_.value(), targets_};
  }

 private:
  void flush() {
    for (const ExactSum& sum : evaluate_sequences(model_, waiting_, place_)) loss_ += sum;
    waiting_.clear();
    tokens_ = 0;
  }

  const LoadedModel& model_;
  EvaluationPlace place_;
  std::vector<TargetSequence> waiting_;
  Index tokens_ = 0, targets_ = 0;
  ExactSum loss_;
};

}  // namespace

std::vector<Window> windows_of(Index tokens, Index length, Index stride) {
  CARTAN_ASSERT(length > 0 && stride > 0 && stride <= length);
  std::vector<Window> windows;
  for (Index begin = 0, done = 0; done < tokens; begin += stride) {
    const Index end = std::min(begin + length, tokens);
    windows.push_back({begin, end, std::max(done, begin + 1)});
    done = end;
  }
  return windows;
}

WindowedLoss evaluate_texts(const LoadedModel& model, const NextText& next, const WindowOptions& options,
                            const EvaluationPlace& place) {
  WindowedLoss result;
  Blocks blocks(model, place);
  std::vector<std::int32_t> ids;
  while ((options.most == 0 || result.windows < options.most) && next(ids)) {
    check_ids(ids, model.config.vocab);
    ++result.texts;
    result.tokens += std::ssize(ids);
    for (const Window& window : windows_of(std::ssize(ids), options.length, options.stride)) {
      if (options.most > 0 && result.windows == options.most) break;
      ++result.windows;
      blocks.add(TargetSequence::of(std::span(ids).subspan(narrow<std::size_t>(window.begin),
                                                           narrow<std::size_t>(window.end - window.begin)),
                                    window.first_target - window.begin));
    }
  }
  result.loss = blocks.finish();
  return result;
}

Index count_words(std::string_view text) {
  Index words = 0;
  bool inside = false;
  for (const char c : text) {
    if (!is_blank(c) && !inside) ++words;
    inside = !is_blank(c);
  }
  return words;
}

}  // namespace cartan::train
