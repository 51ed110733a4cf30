#include "support/golden.hpp"

#include <algorithm>

#include "cartan/core/json.hpp"
#include "support/test_device.hpp"

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

void fill_parameters(shard::FlatState& state, const train::Tensors& tensors) {
  shard::for_each_part(state.layout(), &shard::GradientPart::owned,
                       [&](std::size_t unit, const model::ParameterSpec& p, Index begin, Index end) {
                         const std::vector<float>& values = tensors.at(p.name);
                         model::for_each_run(p, begin, end, [&](Index whole, Index part, Index count) {
                           ASSERT_LE(whole + count, std::ssize(values)) << p.name;
                           upload(state.device(), state.master(unit, p.offset + part, count).data,
                                  std::vector<float>(values.begin() + whole, values.begin() + whole + count));
                         });
                       });
  state.refresh_compute();
}

}  // namespace cartan::testing
