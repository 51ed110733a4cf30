// The words of data.train and data.valid, and the validation split.
#include "cartan/data/config.hpp"

#include <charconv>
#include <cmath>
#include <sstream>
#include <utility>

#include "cartan/data/tokenizer.hpp"

namespace cartan::data {
namespace {

constexpr double kWeightUnit = 1e9;
constexpr double kMaxWeight = 1e6;

std::vector<std::string> split_words(std::span<const std::string> elements) {
  std::vector<std::string> words;
  for (const std::string& element : elements) {
    std::istringstream stream(element);
    for (std::string word; stream >> word;) words.push_back(word);
  }
  return words;
}

bool parse_number(const std::string& word, double& value) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc() && end == word.data() + word.size();
}

std::uint64_t parse_weight(const std::string& word, std::string_view key) {
  double weight = 0;
  if (!parse_number(word, weight))
    throw ConfigError(
        "{}: found \"{}\" where a weight was expected: write either prefixes only, or a weight before each "
        "prefix",
        key, word);
  if (!(weight >= 1 / kWeightUnit && weight <= kMaxWeight))
    throw ConfigError("{}: the weight {} is out of range: use 1e-9 to 1e6", key, word);
  return static_cast<std::uint64_t>(std::llround(weight * kWeightUnit));
}

template <class Function>
void collect(Problems& problems, Function&& function) {
  try {
    function();
  } catch (const ConfigError& error) {
    problems.add("{}", error.what());
  }
}

/// A dataset that several specs name is opened once for each; the pages are shared anyway.
std::vector<Corpus> open_corpora(std::span<const std::string> words, std::string_view key,
                                 const RawFormat& raw) {
  std::vector<Corpus> corpora;
  for (const CorpusSpec& spec : parse_corpora(words, key)) {
    CARTAN_ASSERT(!is_text_source(spec.prefix));
    auto dataset = std::make_shared<const IndexedDataset>(spec.prefix, raw);
    corpora.push_back({dataset, {0, dataset->tokens()}, spec.weight});
  }
  return corpora;
}

/// Shortens the training corpora and returns what was cut off.
std::vector<Corpus> hold_out(std::vector<Corpus>& train, double fraction) {
  std::vector<Corpus> valid;
  for (Corpus& corpus : train) {
    const Index cut = corpus.dataset->document_tokens(split_document(*corpus.dataset, fraction)).begin;
    valid.push_back({corpus.dataset, {cut, corpus.tokens.end}, 0});
    corpus.tokens.end = cut;
  }
  return valid;
}

}  // namespace

void check(const DataConfig& config, Problems& problems) {
  if (split_words(config.train).empty())
    problems.add("data.train is empty: give the prefix of a token file (cartan tokenize makes one)");
  else
    collect(problems, [&] { parse_corpora(config.train, "data.train"); });
  collect(problems, [&] { parse_corpora(config.valid, "data.valid"); });
  if (!(config.valid_fraction >= 0 && config.valid_fraction < 1))
    problems.add("data.valid-fraction = {} is out of range: use 0 or more and less than 1",
                 config.valid_fraction);
  if (config.valid_fraction > 0 && !split_words(config.valid).empty())
    problems.add("data.valid and data.valid-fraction = {} are both given: use one of them",
                 config.valid_fraction);
  if (config.seq < 1 || config.seq > (Index{1} << 30))
    problems.add("data.seq = {} is out of range: use 1 to 2^30 tokens", config.seq);
  // A tokenizer.json is opened where its vocabulary is needed.
  if (!names_tokenizer_file(config.tokenizer)) collect(problems, [&] { make_tokenizer(config.tokenizer); });
  if (config.json_key.empty())
    problems.add("data.json-key is empty: name the member of a JSON line that holds the text");
  if (config.raw_end < -1 || config.raw_end > INT32_MAX)
    problems.add("data.raw-end = {} is out of range: use the id of a token, or -1 for none", config.raw_end);
}

bool is_text_source(std::string_view path) {
  return path.ends_with(".jsonl") || path.ends_with(".json") || path.ends_with(".parquet");
}

RawFormat raw_format_of(const DataConfig& config) {
  RawFormat raw{.end_id = config.raw_end};
  if (config.raw_type != "none") raw.type = config.raw_type == "u16" ? TokenType::u16 : TokenType::u32;
  return raw;
}

std::vector<CorpusSpec> parse_corpora(std::span<const std::string> elements, std::string_view key) {
  const std::vector<std::string> words = split_words(elements);
  double ignored = 0;
  if (words.empty() || !parse_number(words[0], ignored)) {
    std::vector<CorpusSpec> corpora;
    for (const std::string& word : words) {
      if (parse_number(word, ignored))
        throw ConfigError(
            "{}: the weight {} comes after a prefix without one: write a weight before each prefix, or none",
            key, word);
      corpora.push_back({word, 0});
    }
    return corpora;
  }
  std::vector<CorpusSpec> corpora;
  for (std::size_t i = 0; i < words.size(); i += 2) {
    const std::uint64_t weight = parse_weight(words[i], key);
    if (i + 1 == words.size()) throw ConfigError("{}: no prefix follows the weight {}", key, words[i]);
    corpora.push_back({words[i + 1], weight});
  }
  return corpora;
}

Index split_document(const IndexedDataset& dataset, double fraction) {
  CARTAN_ASSERT(fraction > 0 && fraction < 1);
  if (dataset.tokens() == 0) throw DataError("{}: holds no tokens", dataset.prefix());
  const auto target = static_cast<Index>(static_cast<double>(dataset.tokens()) * (1 - fraction));
  const Index document = dataset.document_of_token(std::min(target, dataset.tokens() - 1));
  const IndexRange range = dataset.document_tokens(document);
  const bool after_is_nearer = range.end - target < target - range.begin;
  const bool can_cut_before = range.begin > 0, can_cut_after = range.end < dataset.tokens();
  if (!can_cut_before && !can_cut_after)
    throw ConfigError(
        "{}: one document holds all tokens, so data.valid-fraction = {} cannot cut it; give data.valid "
        "instead",
        dataset.prefix(), fraction);
  return !can_cut_before || (can_cut_after && after_is_nearer) ? document + 1 : document;
}

DataSources open_sources(const DataConfig& config, Index vocab_size) {
  const SamplerOptions options{config.seq, config.seed, config.shuffle, vocab_size};
  const RawFormat raw = raw_format_of(config);
  std::vector<Corpus> train = open_corpora(config.train, "data.train", raw);
  std::vector<Corpus> valid = open_corpora(config.valid, "data.valid", raw);
  if (config.valid_fraction > 0) valid = hold_out(train, config.valid_fraction);
  DataSources sources;
  sources.train = std::make_shared<const Sampler>(std::move(train), options);
  if (!valid.empty()) sources.valid = std::make_shared<const Sampler>(std::move(valid), options);
  return sources;
}

}  // namespace cartan::data
