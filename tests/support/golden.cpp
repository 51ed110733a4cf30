#include "support/golden.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>

#include "cartan/core/json.hpp"
#include "cartan/core/narrow.hpp"

namespace cartan::testing {

namespace fs = std::filesystem;

std::optional<fs::path> find_golden(const std::string& relative) {
  const fs::path source = CARTAN_SOURCE_DIR;
  for (const fs::path& root : {source / "tests/golden", source / "../shared/golden"})
    if (fs::exists(root / relative)) return root / relative;
  return std::nullopt;
}

std::vector<std::string> golden_models(const std::vector<std::string>& expected_files) {
  std::vector<std::string> names;
  for (const std::string name : {"llama3-tiny", "llama-tied-tiny", "qwen2-tiny", "qwen3-tiny"}) {
    const bool complete = find_golden("models/" + name) &&
                          std::all_of(expected_files.begin(), expected_files.end(), [&](const auto& file) {
                            return find_golden("expected/" + name + "/" + file).has_value();
                          });
    if (complete) names.push_back(name);
  }
  return names;
}

model::ModelConfig read_hf_config(const fs::path& folder) {
  const Json json = read_json(folder / "config.json");
  const auto or_null = [&](const char* key, Index fallback) {
    return json.contains(key) && !json[key].is_null() ? json[key].get<Index>() : fallback;
  };
  model::ModelConfig c;
  c.hidden = json.at("hidden_size");
  c.layers = json.at("num_hidden_layers");
  c.heads = json.at("num_attention_heads");
  c.kv_heads = or_null("num_key_value_heads", 0);
  c.head_dim = or_null("head_dim", 0);
  c.ffn = json.at("intermediate_size");
  c.vocab = json.at("vocab_size");
  c.tied = json.value("tie_word_embeddings", false);
  c.qkv_bias = json.at("model_type") == "qwen2";
  c.qk_norm = json.at("model_type") == "qwen3";
  c.rope_theta = json.value("rope_theta", 10000.0);
  c.norm_eps = json.at("rms_norm_eps");
  if (json.contains("rope_scaling") && !json["rope_scaling"].is_null()) {
    const Json& r = json["rope_scaling"];
    c.rope_scaling = {r.at("rope_type"), r.at("factor"), r.at("low_freq_factor"), r.at("high_freq_factor"),
                      r.at("original_max_position_embeddings")};
  }
  c.derive(c.vocab);
  return c;
}

std::map<std::string, std::vector<float>> read_hf_tensors(const fs::path& folder) {
  std::map<std::string, std::vector<float>> tensors;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const store::SafetensorsFile file(entry.path());
    for (const store::NamedTensor& tensor : file.tensors()) tensors[tensor.name] = file.floats(tensor.name);
  }
  return tensors;
}

namespace {

template <class Visit>
void for_each_parameter(const shard::FlatState& state, const Visit& visit) {
  for (std::size_t u = 0; u < state.layout().units().size(); ++u)
    for (const model::ParameterSpec& p : state.layout().units()[u].spec->parameters) visit(u, p);
}

/// What this rank has of a parameter: visit(first element in the whole tensor, element of the unit, count).
template <class Visit>
void for_each_held(const model::ParameterSpec& p, LeafRange held, const Visit& visit) {
  const Index begin = std::max(held.begin - p.offset, Index{0});
  const Index end = std::min(held.end - p.offset, p.elements());
  if (begin < end)
    model::for_each_run(p, begin, end,
                        [&](Index whole, Index part, Index count) { visit(whole, p.offset + part, count); });
}

using View = std::function<device::Vector(std::size_t unit, Index begin, Index count)>;

/// Every rank writes the bits of what it alone stands for into whole tensors of zeros; their sums are the
/// tensors.
std::map<std::string, std::vector<float>> whole_tensors(const shard::FlatState& state, const View& view,
                                                        double scale, comm::Communicator* world) {
  std::map<std::string, std::vector<float>> values;
  for_each_parameter(state, [&](std::size_t unit, const model::ParameterSpec& p) {
    const shard::FlatUnit& flat = state.layout().units()[unit];
    if (flat.is_copy) return;
    auto& tensor = values[p.name];
    tensor.resize(
        narrow<std::size_t>(std::accumulate(p.shape.begin(), p.shape.end(), Index{1}, std::multiplies<>())));
    if (!p.stands_alone) return;
    const LeafRange held = world != nullptr ? flat.gradient.alone : flat.gradient.owned;
    for_each_held(p, held, [&](Index whole, Index element, Index count) {
      const auto* from = static_cast<const float*>(view(unit, element, count).data);
      for (Index i = 0; i < count; ++i)
        tensor[narrow<std::size_t>(whole + i)] = static_cast<float>(static_cast<double>(from[i]) * scale);
    });
  });
  return values;
}

}  // namespace

void fill_parameters(shard::FlatState& state, const std::map<std::string, std::vector<float>>& tensors) {
  for_each_parameter(state, [&](std::size_t unit, const model::ParameterSpec& p) {
    const std::vector<float>& values = tensors.at(p.name);
    for_each_held(p, state.layout().units()[unit].gradient.owned,
                  [&](Index whole, Index element, Index count) {
                    ASSERT_LE(whole + count, std::ssize(values)) << p.name;
                    std::copy_n(values.begin() + whole, count,
                                static_cast<float*>(state.master(unit, element, count).data));
                  });
  });
  state.refresh_compute();
}

std::map<std::string, std::vector<float>> master_values(const shard::FlatState& state,
                                                        comm::Communicator* world) {
  return whole_tensors(
      state, [&](std::size_t unit, Index begin, Index count) { return state.master(unit, begin, count); },
      1.0, world);
}

std::map<std::string, std::vector<float>> gradient_values(const shard::FlatState& state, double scale,
                                                          comm::Communicator* world) {
  return whole_tensors(
      state,
      [&](std::size_t unit, Index begin, Index count) {
        return state.gradient(state.layout().units()[unit].gradient, begin, count);
      },
      scale, world);
}

std::map<std::string, std::vector<float>> gather_tensors(
    const model::ModelConfig& config, const std::map<std::string, std::vector<float>>& mine,
    comm::Communicator& world) {
  std::map<std::string, std::vector<float>> all;
  for (const model::UnitSpec& unit : model::describe_units(config))
    for (const model::ParameterSpec& p : unit.parameters) {
      std::vector<std::int64_t> bits(narrow<std::size_t>(p.elements()), 0);
      if (const auto found = mine.find(p.name); found != mine.end())
        for (std::size_t i = 0; i < bits.size(); ++i)
          bits[i] = std::bit_cast<std::uint32_t>(found->second[i]);
      world.sum(bits);
      std::vector<float>& tensor = all[p.name];
      for (const std::int64_t value : bits)
        tensor.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(value)));
    }
  return all;
}

Distance distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  Distance d;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    d.difference += difference * difference;
    d.norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
    d.largest = std::max(d.largest, std::abs(difference));
  }
  d.difference = std::sqrt(d.difference);
  d.norm = std::sqrt(d.norm);
  return d;
}

}  // namespace cartan::testing
