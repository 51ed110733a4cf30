#include "cli/foreign/batch.hpp"

#include <fmt/format.h>

namespace cartan::cli::foreign {
namespace {

// Products of three of them are exact enough in double to be compared.
constexpr Index kLargestTerm = Index{1} << 30;

std::optional<Index> read_term(Fields& fields, const std::string& name) {
  const auto value = fields.whole(name);
  if (!value || (*value >= 1 && *value <= kLargestTerm)) return value;
  fields.refuse(name, fmt::format("expected a whole number from 1 to {}", kLargestTerm));
  return std::nullopt;
}

}  // namespace

void take_batch_terms(Fields& fields, const std::string& global, const std::string& micro,
                      const std::string& accumulation, Translation& to) {
  BatchTerms& batch = to.batch;
  batch.global = {fields.full(global), read_term(fields, global)};
  batch.micro = {fields.full(micro), read_term(fields, micro)};
  if (!accumulation.empty())
    batch.accumulation = {fields.full(accumulation), read_term(fields, accumulation)};
  if (batch.global.value) fields.take(global, "batch.global", fmt::format("{}", *batch.global.value));
  if (batch.micro.value) fields.take(micro, "batch.micro", fmt::format("{}", *batch.micro.value));
  if (batch.accumulation.value) fields.confirm(accumulation, "batch.global / (batch.micro * mesh.dp)");
}

std::optional<Index> replicas_of(const BatchTerms& batch) {
  if (!batch.has_all()) return std::nullopt;
  const Index share = *batch.micro.value * *batch.accumulation.value;
  if (*batch.global.value % share != 0) return std::nullopt;
  return *batch.global.value / share;
}

bool needs_replicas(const BatchTerms& batch) { return !batch.global.value && batch.micro.value; }

std::vector<Setting> complete_batch(const Translation& translation, Index replicas, Problems& problems) {
  const BatchTerms& batch = translation.batch;
  const BatchTerms::Term &global = batch.global, &micro = batch.micro, &accumulation = batch.accumulation;
  const auto derived = [&](const std::string& names, const char* key, double value) {
    return std::vector<Setting>{
        {fmt::format("{} and {} replicas", names, replicas), "", key, fmt::format("{:.0f}", value)}};
  };
  const auto real = [](Index value) { return static_cast<double>(value); };
  if (batch.has_all()) {
    const double product = real(*micro.value) * real(*accumulation.value) * real(replicas);
    if (product != real(*global.value))
      problems.add(
          "{}: {} = {} is not {} * {} * replicas of the model = {} * {} * {} = {:.0f}: change one of them, "
          "or "
          "the number of ranks",
          translation.path, global.name, *global.value, micro.name, accumulation.name, *micro.value,
          *accumulation.value, replicas, product);
  } else if (global.value && accumulation.value) {
    const Index share = *accumulation.value * replicas;
    if (*global.value % share != 0)
      problems.add("{}: {} = {} is not divisible by {} * replicas of the model = {} * {} = {}",
                   translation.path, global.name, *global.value, accumulation.name, *accumulation.value,
                   replicas, share);
    else
      return derived(global.name + ", " + accumulation.name, "batch.micro", real(*global.value / share));
  } else if (!global.value && micro.value) {
    const Index steps = accumulation.value.value_or(1);
    const std::string names = accumulation.value ? micro.name + ", " + accumulation.name : micro.name;
    return derived(names, "batch.global", real(*micro.value) * real(steps) * real(replicas));
  }
  return {};
}

}  // namespace cartan::cli::foreign
