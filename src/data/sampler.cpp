// Number -> corpus (mixture) -> epoch and window (permutation) -> row of a batch.
#include "cartan/data/sampler.hpp"

#include <algorithm>
#include <utility>

#include "cartan/core/error.hpp"
#include "cartan/core/random.hpp"

namespace cartan::data {
namespace {

Index count_samples(const Corpus& corpus, Index seq) {
  const Index tokens = corpus.tokens.size();
  if (tokens == 0)
    throw DataError("{}: holds no tokens, so nothing can be drawn from it", corpus.dataset->prefix());
  if (tokens <= seq)
    throw ConfigError(
        "{}: {} tokens are too few for one sample of data.seq = {}, which takes {}; lower data.seq or add "
        "text",
        corpus.dataset->prefix(), tokens, seq, seq + 1);
  return (tokens - 1) / seq;
}

std::vector<Index> count_samples(const std::vector<Corpus>& corpora, Index seq) {
  CARTAN_ASSERT(!corpora.empty() && seq > 0);
  std::vector<Index> samples;
  samples.reserve(corpora.size());
  for (const Corpus& corpus : corpora) samples.push_back(count_samples(corpus, seq));
  return samples;
}

Mixture make_mixture(const std::vector<Corpus>& corpora, const std::vector<Index>& samples) {
  std::vector<std::uint64_t> weights;
  weights.reserve(corpora.size());
  for (const Corpus& corpus : corpora) weights.push_back(corpus.weight);
  if (std::all_of(weights.begin(), weights.end(), [](std::uint64_t weight) { return weight == 0; }))
    weights.assign(samples.begin(), samples.end());
  return Mixture(weights);
}

}  // namespace

Sampler::Sampler(std::vector<Corpus> corpora, SamplerOptions options)
    : corpora_(std::move(corpora)),
      options_(options),
      samples_(count_samples(corpora_, options_.seq)),
      mixture_(make_mixture(corpora_, samples_)) {
  CARTAN_ASSERT(options_.vocab_size > 0);
}

Index Sampler::samples() const {
  Index sum = 0;
  for (const Index count : samples_) sum += count;
  return sum;
}

Sampler::Location Sampler::locate(Index sample) const {
  CARTAN_ASSERT(sample >= 0);
  const auto [corpus, number] = mixture_(sample);
  const Index per_epoch = samples_of(corpus);
  const Index epoch = number / per_epoch;
  Index window = number % per_epoch;
  if (options_.shuffle) {
    // One random stream for each epoch of each corpus.
    const std::uint64_t stream =
        (static_cast<std::uint64_t>(corpus) << 40) | static_cast<std::uint64_t>(epoch);
    const Permutation order(static_cast<std::uint64_t>(per_epoch), options_.seed, stream);
    window = static_cast<Index>(order(static_cast<std::uint64_t>(window)));
  }
  return {corpus, epoch, corpora_[static_cast<std::size_t>(corpus)].tokens.begin + window * options_.seq};
}

void Sampler::fill(std::span<const Index> samples, Batch& batch) const {
  batch.sequences = static_cast<Index>(samples.size());
  batch.seq = options_.seq;
  const std::size_t size = samples.size() * static_cast<std::size_t>(options_.seq);
  for (auto* array : {&batch.tokens, &batch.targets, &batch.positions, &batch.document_start})
    array->resize(size);
  for (Index row = 0; row < batch.sequences; ++row)
    fill_row(locate(samples[static_cast<std::size_t>(row)]), row, batch);
}

void Sampler::fill_row(const Location& location, Index row, Batch& batch) const {
  const IndexedDataset& dataset = *corpora_[static_cast<std::size_t>(location.corpus)].dataset;
  const Index seq = options_.seq, first = location.first_token;
  std::vector<std::int32_t> window(static_cast<std::size_t>(seq + 1));
  dataset.read_tokens(first, window, options_.vocab_size);

  const auto row_of = [&](std::vector<std::int32_t>& array) { return array.data() + row * seq; };
  std::int32_t* const tokens = row_of(batch.tokens);
  std::int32_t* const targets = row_of(batch.targets);
  std::int32_t* const positions = row_of(batch.positions);
  std::int32_t* const document_start = row_of(batch.document_start);
  std::copy_n(window.begin(), seq, tokens);
  std::copy_n(window.begin() + 1, seq, targets);

  Index document = dataset.document_of_token(first);
  for (Index begin = 0; begin < seq; ++document) {
    const Index document_end = dataset.document_tokens(document).end - first;
    const Index end = std::min(document_end, seq);
    for (Index t = begin; t < end; ++t) {
      positions[t] = static_cast<std::int32_t>(t - begin);
      document_start[t] = static_cast<std::int32_t>(begin);
    }
    // The document's last token has no successor.
    if (document_end <= seq && end > begin) targets[end - 1] = kIgnoredTarget;
    begin = end;
  }
}

}  // namespace cartan::data
