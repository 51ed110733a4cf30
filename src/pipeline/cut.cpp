#include "cartan/pipeline/cut.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>
#include <tuple>

#include "cartan/core/text.hpp"

namespace cartan::pipeline {
namespace {

using Blocks = std::vector<Index>;  // of each part

Index sum(const Blocks& blocks) { return std::accumulate(blocks.begin(), blocks.end(), Index{0}); }

Blocks cut_by_layers(Index layers, Index parts) {
  if (layers < parts)
    throw ConfigError(
        "pipeline.cut = layers needs a layer for each of the {} parts (mesh.pp * pipeline.chunks), but "
        "model.layers = {}: use at most {} parts, or at least {} layers",
        parts, layers, layers, parts);
  Blocks blocks;
  for (Index part = 0; part < parts; ++part)
    blocks.push_back(layers / parts + (part < layers % parts ? 1 : 0));
  return blocks;
}

/// Blocks are all alike, so the head decides: for each number of blocks beside it the others are shared
/// evenly.
Blocks cut_by_flops(const model::ModelConfig& config, Index sequence_length, Index parts) {
  const Index layers = config.layers;
  if (layers + 2 < parts)
    throw ConfigError(
        "pipeline.cut = flops needs a unit for each of the {} parts (mesh.pp * pipeline.chunks), but "
        "model.layers = {} make {} units with embedding and head: use at most {} parts, or at least {} "
        "layers",
        parts, layers, layers + 2, layers + 2, parts - 2);
  if (parts == 1) return {layers};
  model::ModelConfig counted = config;
  counted.layers = 0;
  const double head = model::flops_per_token(counted, sequence_length).causal;
  counted.layers = 1;
  const double block = model::flops_per_token(counted, sequence_length).causal - head;

  const Index others = parts - 1;
  std::tuple<double, double> best;
  Index best_last = -1;
  // The first part has the embedding and may have no block; those between need one each.
  for (Index last = layers - (others - 1); last >= 0; --last) {
    const Index few = (layers - last) / others, more = (layers - last) % others;
    const auto flops = [&](Index blocks) { return static_cast<double>(blocks) * block; };
    const double with_head = flops(last) + head;
    const double largest = std::max(flops(few + (more > 0 ? 1 : 0)), with_head);
    const double squares = static_cast<double>(others - more) * flops(few) * flops(few) +
                           static_cast<double>(more) * flops(few + 1) * flops(few + 1) +
                           with_head * with_head;
    const std::tuple cost{largest, squares};
    if (best_last < 0 || cost < best) {
      best = cost;
      best_last = last;
    }
  }
  const Index few = (layers - best_last) / others, more = (layers - best_last) % others;
  Blocks blocks;
  for (Index part = 0; part < others; ++part) blocks.push_back(few + (part < others - more ? 0 : 1));
  blocks.push_back(best_last);
  return blocks;
}

/// Nothing unless `how` is a list of whole numbers.
std::optional<Blocks> parse_list(const std::string& how) {
  Blocks blocks;
  for (const std::string& entry : split(how, ',')) {
    const std::string_view digits = trim(entry);
    Index value = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < 0 || value > (1 << 20))
      return std::nullopt;
    blocks.push_back(value);
  }
  return blocks;
}

Blocks cut_by_list(const std::string& how, Index layers, Index parts) {
  Blocks blocks = *parse_list(how);
  Problems problems;
  if (static_cast<Index>(blocks.size()) != parts)
    problems.add(
        "pipeline.cut = {} has {} entries: expected {}, one for each part (mesh.pp * pipeline.chunks)", how,
        blocks.size(), parts);
  if (sum(blocks) != layers)
    problems.add("pipeline.cut = {} adds up to {} layers: expected model.layers = {}", how, sum(blocks),
                 layers);
  for (std::size_t part = 1; part + 1 < blocks.size(); ++part) {
    if (blocks[part] == 0)
      problems.add(
          "pipeline.cut = {} leaves part {} without a unit: only the first part, which has the embedding, "
          "and "
          "the last one, which has the head, can do without layers",
          how, part);
  }
  problems.throw_if_any("the cut of the pipeline");
  return blocks;
}

}  // namespace

std::vector<model::StageRange> cut_units(const model::ModelConfig& config, Index sequence_length, int parts,
                                         const std::string& how) {
  CARTAN_ASSERT(parts >= 1 && config.layers >= 1);
  Problems problems;
  check_cut(how, problems);
  problems.throw_if_any("the cut of the pipeline");
  const Blocks blocks = how == "layers"  ? cut_by_layers(config.layers, parts)
                        : how == "flops" ? cut_by_flops(config, sequence_length, parts)
                                         : cut_by_list(how, config.layers, parts);
  std::vector<model::StageRange> ranges;
  Index begin = 0, layers = 0;
  for (std::size_t part = 0; part < blocks.size(); ++part) {
    layers += blocks[part];
    const Index end = 1 + layers + (part + 1 == blocks.size() ? 1 : 0);
    CARTAN_ASSERT(end > begin);
    ranges.push_back({begin, end});
    begin = end;
  }
  CARTAN_ASSERT(ranges.size() == static_cast<std::size_t>(parts) && begin == config.layers + 2);
  return ranges;
}

std::vector<std::string> describe_ranges(const std::vector<model::StageRange>& ranges, Index layers) {
  std::vector<std::string> texts;
  for (const model::StageRange& range : ranges) {
    std::vector<std::string> units;
    if (range.first == 0) units.emplace_back("embedding");
    const Index first = std::max<Index>(range.first, 1) - 1, last = std::min(range.end - 1, layers) - 1;
    if (first == last) units.push_back(fmt::format("layer {}", first));
    if (first < last) units.push_back(fmt::format("layers {}-{}", first, last));
    if (range.end == layers + 2) units.emplace_back("head");
    texts.push_back(fmt::format("{}", fmt::join(units, ", ")));
  }
  return texts;
}

void check_cut(const std::string& how, Problems& problems) {
  if (how != "layers" && how != "flops" && !parse_list(how))
    problems.add("pipeline.cut = {}: use flops, layers, or the layers of each part as in 3,4,5", how);
}

}  // namespace cartan::pipeline
