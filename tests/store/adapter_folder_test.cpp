// Adapters in PEFT's layout: what is read, what is refused, what is written.
#include "cartan/store/adapter_folder.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>

#include "cartan/core/file.hpp"
#include "cartan/core/json.hpp"
#include "cartan/model/adapters.hpp"
#include "cartan/model/parameters.hpp"

namespace cartan::store {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

model::ModelConfig small() {
  model::ModelConfig c;
  c.hidden = 12;
  c.layers = 3;
  c.heads = 3;
  c.kv_heads = 1;
  c.head_dim = 4;
  c.ffn = 7;
  c.vocab = 11;
  c.lora.rank = 2;
  c.lora.alpha = 3;
  return c;
}

/// A number for each element of each adapter.
float value_of(const std::string& parameter, Index element) {
  return static_cast<float>(parameter.size()) + static_cast<float>(element) / 16;
}

class AdapterFolders : public ::testing::Test {
 protected:
  AdapterFolders() : dir_(fs::temp_directory_path() / fmt::format("cartan-adapters-{}", ::getpid())) {
    fs::remove_all(dir_);
  }
  ~AdapterFolders() override { fs::remove_all(dir_); }

  void write(const model::ModelConfig& config, const std::string& base = "base") const {
    write_adapter_folder(dir_, config, base,
                         [](const std::string& parameter, Index first, Index count, float* out) {
                           for (Index i = 0; i < count; ++i) out[i] = value_of(parameter, first + i);
                         },
                         {.overwrite = true, .tokenizer_from = {}});
  }
  Json json() const { return read_json(dir_ / "adapter_config.json"); }
  void change(const Json& entries) const {
    Json changed = json();
    changed.update(entries);
    write_file_atomically(dir_ / "adapter_config.json", changed.dump());
  }
  std::string refusal() const {
    try {
      AdapterFolder folder(dir_);
    } catch (const DataError& error) {
      return error.what();
    }
    return "none";
  }
  static std::string refusal_of(const AdapterFolder& folder, const model::ModelConfig& config) {
    try {
      folder.check(config);
    } catch (const DataError& error) {
      return error.what();
    }
    return "none";
  }

  fs::path dir_;
};

TEST_F(AdapterFolders, WhatIsWrittenIsRead) {
  model::ModelConfig config = small();
  struct Case {
    std::vector<std::string> targets;
    const char* layers;
    int count;  ///< of matrices
  };
  for (const auto& [targets, layers, count] :
       {Case{{"q_proj", "down_proj"}, "all", 12}, Case{{"*.mlp.*"}, "0,2", 12},
        Case{{"model.layers.1.self_attn.o_proj", "model.layers.2.mlp.up_proj"}, "all", 4}}) {
    config.lora.targets = targets;
    config.lora.layers = layers;
    write(config);
    EXPECT_TRUE(is_adapter_folder(dir_));
    const AdapterFolder folder(dir_);
    EXPECT_EQ(folder.base(), "base");
    EXPECT_EQ(folder.lora().rank, 2);
    EXPECT_EQ(folder.lora().alpha, 3);
    folder.check(config);
    model::ModelConfig read = config;
    read.lora = folder.lora();
    folder.check(read);
    int adapters = 0;
    for (const model::UnitSpec& unit : model::describe_units(read))
      for (const model::ParameterSpec& p : unit.parameters) {
        if (!model::is_adapter(p.name)) continue;
        ++adapters;
        std::vector<float> values(static_cast<std::size_t>(p.elements() - 1));
        folder.read(p.name, 1, p.elements() - 1, values.data());
        for (std::size_t i = 0; i < values.size(); ++i)
          EXPECT_EQ(values[i], value_of(p.name, static_cast<Index>(i) + 1)) << p.name;
      }
    EXPECT_EQ(adapters, count);
  }
}

TEST_F(AdapterFolders, TheConfigurationIsWhatPeftReads) {
  model::ModelConfig config = small();
  config.lora.targets = {"v_proj", "q_proj"};
  config.lora.layers = "0,2";
  write(config);
  EXPECT_EQ(json()["peft_type"], "LORA");
  EXPECT_EQ(json()["target_modules"], Json({"q_proj", "v_proj"}));
  EXPECT_EQ(json()["layers_to_transform"], Json({0, 2}));
  EXPECT_EQ(json()["r"], 2);
  EXPECT_TRUE(json()["lora_alpha"].is_number_integer());
  EXPECT_EQ(SafetensorsFile(dir_ / "adapter_model.safetensors")
                .tensor("base_model.model.model.layers.2.self_attn.v_proj.lora_B.weight")
                .shape,
            (std::vector<Index>{4, 2}));
  config.lora.targets = {"model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.k_proj"};
  config.lora.layers = "all";
  write(config, "");
  EXPECT_EQ(json()["target_modules"], Json(config.lora.targets));
  EXPECT_TRUE(json()["layers_to_transform"].is_null());
  EXPECT_TRUE(json()["base_model_name_or_path"].is_null());
}

TEST_F(AdapterFolders, RankStabilizedScalingIsPartOfAlpha) {
  write(small());
  change({{"use_rslora", true}, {"r", 2}, {"lora_alpha", 4}});
  EXPECT_DOUBLE_EQ(AdapterFolder(dir_).lora().scale(), 4 / std::sqrt(2.0));
}

TEST_F(AdapterFolders, WhatChangesTheMathematicsIsRefusedByName) {
  write(small());
  for (const auto& [key, value] : {std::pair<const char*, Json>{"use_dora", true},
                                   {"bias", "all"},
                                   {"fan_in_fan_out", true},
                                   {"modules_to_save", {"lm_head"}},
                                   {"rank_pattern", {{"q_proj", 8}}},
                                   {"alpha_pattern", {{"q_proj", 8}}},
                                   {"lora_bias", true},
                                   {"layer_replication", {{0, 1}}},
                                   {"an_entry_of_tomorrow", 3}}) {
    const Json before = json();
    change({{key, value}});
    EXPECT_THAT(refusal(), HasSubstr(fmt::format("{} = ", key)));
    write_file_atomically(dir_ / "adapter_config.json", before.dump());
    EXPECT_EQ(refusal(), "none");
    change({{key, nullptr}});
    EXPECT_EQ(refusal(), "none") << key << " without a value";
    write_file_atomically(dir_ / "adapter_config.json", before.dump());
  }
  change({{"peft_type", "IA3"}});
  EXPECT_THAT(refusal(), HasSubstr("only LORA is known"));
  change({{"peft_type", "LORA"}, {"r", "two"}});
  for (const Json& rank : {Json("two"), Json(0), Json(2.0), Json(1e300), Json(nullptr), Json(1ll << 40)}) {
    change({{"r", rank}});
    EXPECT_THAT(refusal(), HasSubstr(fmt::format("r = {}: expected a whole number", rank.dump())));
  }
  change({{"r", 2}, {"lora_alpha", -1}});
  EXPECT_THAT(refusal(), HasSubstr("lora_alpha = -1: must be positive"));
  change({{"lora_alpha", "8"}});
  EXPECT_THAT(refusal(), HasSubstr("lora_alpha = \"8\": expected a number"));
}

TEST_F(AdapterFolders, TensorsThatDoNotFitAreListed) {
  write(small());
  const AdapterFolder folder(dir_);
  model::ModelConfig other = small();
  other.hidden = 16;
  other.lora.targets = {"q_proj", "k_proj", "v_proj"};
  EXPECT_THAT(refusal_of(folder, other),
              AllOf(HasSubstr("layers.0.self_attn.q_proj.lora_A.weight is [2, 12] in fp32, expected [2, 16]"),
                    HasSubstr("layers.2.self_attn.k_proj.lora_B.weight [4, 2] is missing")));
  other = small();
  other.lora.targets = {"q_proj"};
  EXPECT_THAT(
      refusal_of(folder, other),
      HasSubstr("v_proj.lora_A.weight belongs to an adapter that lora.targets and lora.layers do not"));
  const std::vector<float> values(4, 1.0f);
  for (const char* const name :
       {"base_model.model.model.embed_tokens.lora_embedding_A",
        "base_model.model.model.layers.0.self_attn.qkv_proj.lora_A.weight",
        "base_model.model.model.layers.99999999999999999999.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.-1.self_attn.q_proj.lora_A.weight", "lora_A"}) {
    const NamedTensor tensor{name, DType::f32, {2, 2}, std::as_bytes(std::span(values))};
    write_safetensors(dir_ / "adapter_model.safetensors", std::vector{tensor});
    EXPECT_THAT(refusal(), HasSubstr(std::string(name) + " belongs to no adapter"));
  }
  write_safetensors(dir_ / "adapter_model.safetensors", {});
  EXPECT_THAT(refusal(), HasSubstr("there is no adapter"));
}

TEST_F(AdapterFolders, JoinedProjectionsHaveNoAdaptersOfEach) {
  model::ModelConfig config = small();
  config.family = "phi3";
  EXPECT_THROW(write(config), ConfigError);
}

}  // namespace
}  // namespace cartan::store
