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

/// The documents in a corpus.
IndexRange documents_of(const Corpus& corpus) {
  const IndexedDataset& dataset = *corpus.dataset;
  if (corpus.tokens.size() == 0) return {};
  return {dataset.document_of_token(corpus.tokens.begin),
          dataset.document_of_token(corpus.tokens.end - 1) + 1};
}

std::vector<std::shared_ptr<const Packing>> pack_samples(const std::vector<Corpus>& corpora,
                                                         const SamplerOptions& options) {
  std::vector<std::shared_ptr<const Packing>> packings;
  for (const Corpus& corpus : corpora) {
    packings.emplace_back();
    if (!corpus.dataset->has_mask()) continue;
    packings.back() = std::make_shared<const Packing>(
        pack(*corpus.dataset, documents_of(corpus), options.seq, options.shuffle, options.seed));
    if (packings.back()->rows() == 0)
      throw DataError(
          "{}: no sample has a token that counts among its first {}, so there is nothing to learn",
          corpus.dataset->prefix(), options.seq + 1);
  }
  return packings;
}

std::vector<Index> count_samples(const std::vector<Corpus>& corpora,
                                 const std::vector<std::shared_ptr<const Packing>>& packings, Index seq) {
  CARTAN_ASSERT(!corpora.empty() && seq > 0);
  std::vector<Index> samples;
  samples.reserve(corpora.size());
  for (std::size_t i = 0; i < corpora.size(); ++i)
    samples.push_back(packings[i] ? packings[i]->rows() : count_samples(corpora[i], seq));
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
      packings_(pack_samples(corpora_, options_)),
      samples_(count_samples(corpora_, packings_, options_.seq)),
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
  const Corpus& from = corpora_[static_cast<std::size_t>(corpus)];
  const Index first_token = packing(corpus) != nullptr
                                ? from.dataset->document_tokens(packing(corpus)->row(window)[0]).begin
                                : from.tokens.begin + window * options_.seq;
  return {corpus, epoch, first_token, window};
}

/// Arrays of seq elements.
struct Sampler::Row {
  std::int32_t *tokens, *targets, *positions, *document_start;
};

void Sampler::fill(std::span<const Index> samples, Batch& batch) const {
  batch.sequences = static_cast<Index>(samples.size());
  batch.seq = options_.seq;
  const std::size_t size = samples.size() * static_cast<std::size_t>(options_.seq);
  for (auto* array : {&batch.tokens, &batch.targets, &batch.positions, &batch.document_start})
    array->resize(size);
  for (Index i = 0; i < batch.sequences; ++i) {
    const Location location = locate(samples[static_cast<std::size_t>(i)]);
    const auto of = [&](std::vector<std::int32_t>& array) { return array.data() + i * batch.seq; };
    const Row row{of(batch.tokens), of(batch.targets), of(batch.positions), of(batch.document_start)};
    packing(location.corpus) != nullptr ? fill_packed(location, row) : fill_window(location, row);
  }
}

void Sampler::fill_packed(const Location& location, const Row& row) const {
  const IndexedDataset& dataset = *corpora_[static_cast<std::size_t>(location.corpus)].dataset;
  const Index seq = options_.seq;
  std::vector<std::int32_t> ids;
  Index at = 0;
  for (const Index document : packing(location.corpus)->row(location.number)) {
    const Index first = dataset.document_tokens(document).begin;
    const Index places = packed_places(dataset, document, seq);
    ids.resize(static_cast<std::size_t>(places + 1));
    dataset.read_tokens(first, ids, options_.vocab_size);
    for (Index t = 0; t < places; ++t) {
      row.tokens[at + t] = ids[static_cast<std::size_t>(t)];
      row.targets[at + t] =
          dataset.is_counted(first + t + 1) ? ids[static_cast<std::size_t>(t + 1)] : kIgnoredTarget;
      row.positions[at + t] = static_cast<std::int32_t>(t);
      row.document_start[at + t] = static_cast<std::int32_t>(at);
    }
    at += places;
  }
  // What is left sees and is seen by nothing but itself.
  for (; at < seq; ++at) {
    row.tokens[at] = row.positions[at] = 0;
    row.targets[at] = kIgnoredTarget;
    row.document_start[at] = static_cast<std::int32_t>(at);
  }
}

void Sampler::fill_window(const Location& location, const Row& row) const {
  const IndexedDataset& dataset = *corpora_[static_cast<std::size_t>(location.corpus)].dataset;
  const Index seq = options_.seq, first = location.first_token;
  std::vector<std::int32_t> window(static_cast<std::size_t>(seq + 1));
  dataset.read_tokens(first, window, options_.vocab_size);
  std::copy_n(window.begin(), seq, row.tokens);
  std::copy_n(window.begin() + 1, seq, row.targets);

  Index document = dataset.document_of_token(first);
  for (Index begin = 0; begin < seq; ++document) {
    const Index document_end = dataset.document_tokens(document).end - first;
    const Index end = std::min(document_end, seq);
    for (Index t = begin; t < end; ++t) {
      row.positions[t] = static_cast<std::int32_t>(t - begin);
      row.document_start[t] = static_cast<std::int32_t>(begin);
    }
    // The document's last token has no successor.
    if (document_end <= seq && end > begin) row.targets[end - 1] = kIgnoredTarget;
    begin = end;
  }
}

}  // namespace cartan::data
