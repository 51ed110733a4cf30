#include "support/golden.hpp"

#include <algorithm>
#include <cmath>

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
  for (const shard::FlatUnit& unit : state.layout().units())
    for (const model::ParameterSpec& p : unit.spec->parameters) visit(unit, p);
}

std::vector<float> host_values(const device::Vector& v, double scale) {
  const auto* data = static_cast<const float*>(v.data);
  std::vector<float> values(data, data + v.size);
  for (float& value : values) value = static_cast<float>(static_cast<double>(value) * scale);
  return values;
}

}  // namespace

void fill_parameters(shard::FlatState& state, const std::map<std::string, std::vector<float>>& tensors) {
  for_each_parameter(state, [&](const shard::FlatUnit& unit, const model::ParameterSpec& p) {
    const std::vector<float>& values = tensors.at(p.name);
    ASSERT_EQ(narrow<Index>(values.size()), p.elements()) << p.name;
    std::copy(values.begin(), values.end(),
              static_cast<float*>(state.master(unit.parameter_begin + p.offset, p.elements()).data));
  });
  state.refresh_compute();
}

std::map<std::string, std::vector<float>> master_values(const shard::FlatState& state) {
  std::map<std::string, std::vector<float>> values;
  for_each_parameter(state, [&](const shard::FlatUnit& unit, const model::ParameterSpec& p) {
    values[p.name] = host_values(state.master(unit.parameter_begin + p.offset, p.elements()), 1.0);
  });
  return values;
}

std::map<std::string, std::vector<float>> gradient_values(const shard::FlatState& state, double scale) {
  std::map<std::string, std::vector<float>> values;
  for_each_parameter(state, [&](const shard::FlatUnit& unit, const model::ParameterSpec& p) {
    values[p.name] = host_values(state.gradient(unit.gradient_begin + p.offset, p.elements()), scale);
  });
  return values;
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
