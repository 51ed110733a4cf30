// Hugging Face folders: what is read of config.json and of the files, what is refused, what is written.
#include "cartan/store/model_folder.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "cartan/core/bfloat16.hpp"
#include "cartan/core/file.hpp"
#include "cartan/core/float16.hpp"
#include "cartan/core/json.hpp"
#include "cartan/store/model_config_file.hpp"
#include "cartan/store/model_folder_writer.hpp"

namespace cartan::store {
namespace {

namespace fs = std::filesystem;
using model::ModelConfig;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Json llama() {
  return {{"model_type", "llama"},       {"vocab_size", 11},         {"hidden_size", 12},
          {"num_hidden_layers", 2},      {"num_attention_heads", 3}, {"num_key_value_heads", 1},
          {"intermediate_size", 7},      {"rms_norm_eps", 1e-5},     {"max_position_embeddings", 64},
          {"tie_word_embeddings", false}};
}
Json of_type(const char* type) {
  Json json = llama();
  json["model_type"] = type;
  return json;
}

ModelConfig read(const Json& json) { return model_config_from_hugging_face(json, "config.json"); }

std::string refusal(const Json& json) {
  try {
    read(json);
  } catch (const DataError& error) {
    return error.what();
  }
  return "none";
}

TEST(ModelConfigFile, KnowsWhatEachFamilyMeansWithoutSayingIt) {
  EXPECT_EQ(read(llama()).head_dim, 4);
  EXPECT_FALSE(read(llama()).qkv_bias);
  EXPECT_TRUE(read(of_type("qwen2")).qkv_bias);
  EXPECT_EQ(read(of_type("qwen2")).window, 0) << "off unless use_sliding_window";
  EXPECT_TRUE(read(of_type("qwen3")).qk_norm);
  EXPECT_EQ(read(of_type("qwen3")).head_dim, 128);
  EXPECT_EQ(read(of_type("mistral")).window, 4096);
  EXPECT_EQ(read(of_type("phi3")).window, 0);
  Json json = llama();
  json.erase("num_key_value_heads");
  EXPECT_EQ(read(json).kv_heads, 3);
  json.erase("rms_norm_eps");
  EXPECT_EQ(read(json).norm_eps, 1e-6);
}

TEST(ModelConfigFile, SwitchesWindowsOffAndOnByLayer) {
  Json json = of_type("mistral");
  json["sliding_window"] = nullptr;
  EXPECT_EQ(read(json).window, 0);
  json = of_type("qwen2");
  json["num_hidden_layers"] = 5;
  json["sliding_window"] = 9;
  json["max_window_layers"] = 3;
  EXPECT_EQ(read(json).window, 0);
  json["use_sliding_window"] = true;
  EXPECT_EQ(read(json).window, 9);
  EXPECT_EQ(read(json).window_layers, "3-4");
  json["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "full_attention",
                         "full_attention"};
  EXPECT_EQ(read(json).window_layers, "0,2");
  json["layer_types"][1] = "chunked_attention";
  EXPECT_THAT(refusal(json), HasSubstr("layer_types[1] = \"chunked_attention\""));
  json["layer_types"] = {"full_attention"};
  EXPECT_THAT(refusal(json), HasSubstr("a list of 5 texts"));
}

TEST(ModelConfigFile, ReadsEveryStretchingOfRotaryFrequencies) {
  const auto with = [](Json rope) {
    Json json = llama();
    json["rope_scaling"] = std::move(rope);
    return json;
  };
  EXPECT_EQ(read(with({{"type", "linear"}, {"factor", 2.5}})).rope_scaling.factor, 2.5);
  const auto dynamic = read(with({{"type", "dynamic"}, {"factor", 2.0}})).rope_scaling;
  EXPECT_EQ(dynamic.kind, "dynamic");
  EXPECT_EQ(dynamic.original_length, 64);
  const auto yarn = read(with({{"rope_type", "yarn"},
                               {"factor", 4.0},
                               {"original_max_position_embeddings", 16},
                               {"beta_fast", 20},
                               {"mscale", 1.0},
                               {"mscale_all_dim", 0.5}}))
                        .rope_scaling;
  EXPECT_EQ(yarn.original_length, 16);
  EXPECT_EQ(yarn.beta_fast, 20);
  EXPECT_NEAR(yarn.attention_factor, (0.1 * std::log(4) + 1) / (0.05 * std::log(4) + 1), 1e-15);
  EXPECT_THAT(refusal(with({{"rope_type", "yarn"}, {"factor", 4.0}, {"truncate", false}})),
              HasSubstr("rope_scaling.truncate = false: cartan has only true"));
  EXPECT_THAT(refusal(with({{"rope_type", "llama3"}, {"factor", 8.0}})),
              AllOf(HasSubstr("rope_scaling.low_freq_factor is missing"),
                    HasSubstr("rope_scaling.high_freq_factor is missing")));
  EXPECT_THAT(refusal(with({{"rope_type", "mrope"}, {"mrope_section", {1, 2}}})),
              AllOf(HasSubstr("rope_scaling.mrope_section"), HasSubstr("does not know")));
  EXPECT_THAT(refusal(with({{"rope_type", "proportional"}})), HasSubstr("model.rope-scaling = proportional"));
  EXPECT_THAT(refusal(with("linear")), HasSubstr("rope_scaling: must be an object"));
}

TEST(ModelConfigFile, RefusesWhatWouldComputeSomethingElse) {
  Json json = llama();
  json["hidden_act"] = "gelu";
  json["attention_bias"] = true;
  json["mlp_bias"] = true;
  json["attention_dropout"] = 0.1;
  json["attention_multiplier"] = 0.5;
  json["quantization_config"] = {{"bits", 4}};
  json["vocab_size"] = "many";
  json.erase("hidden_size");
  const std::string text = refusal(json);
  for (const char* expected :
       {"hidden_act = \"gelu\": cartan has only \"silu\"", "attention_bias = true", "mlp_bias = true",
        "attention_dropout = 0.1: must be 0", "attention_multiplier = 0.5: cartan does not know this entry",
        "quantization_config", "vocab_size = \"many\": must be a whole number", "hidden_size is missing"})
    EXPECT_THAT(text, HasSubstr(expected));
  json = llama();
  json["use_mrope"] = false;
  json["some_day"] = nullptr;
  EXPECT_EQ(refusal(json), "none") << "what is off has no effect";
  EXPECT_THAT(refusal(of_type("gemma2")), HasSubstr("model_type = \"gemma2\": cartan reads llama, mistral"));
  EXPECT_THAT(refusal(Json::array()), HasSubstr("expected a JSON object"));
  json = llama();
  json["num_hidden_layers"] = 1 << 20;
  EXPECT_THAT(refusal(json), HasSubstr("model.layers"));
}

TEST(ModelConfigFile, WhatIsWrittenIsReadBack) {
  std::vector<Json> files{llama(), of_type("mistral"), of_type("qwen2"), of_type("qwen3"), of_type("phi3")};
  files.push_back(of_type("qwen3"));
  files.back().update(Json{{"use_sliding_window", true}, {"sliding_window", 5}, {"max_window_layers", 1}});
  files.push_back(of_type("phi3"));
  files.back().update(
      Json{{"partial_rotary_factor", 0.5},
           {"original_max_position_embeddings", 16},
           {"rope_scaling", {{"type", "longrope"}, {"short_factor", {1.5}}, {"long_factor", {2}}}}});
  for (const char* type : {"linear", "dynamic", "yarn"}) {
    files.push_back(llama());
    files.back()["rope_scaling"] = {{"rope_type", type}, {"factor", 4.0}};
  }
  for (const Json& file : files) {
    const ModelConfig config = read(file);
    const Json written = model_config_to_hugging_face(config, DType::bf16);
    EXPECT_EQ(model::to_json(read(written)), model::to_json(config)) << file.dump();
    EXPECT_EQ(written["torch_dtype"], "bfloat16");
  }
}

TEST(ModelConfigFile, FindsAFamilyOrSaysWhyThereIsNone) {
  ModelConfig config = read(llama());
  config.family.clear();
  EXPECT_EQ(family_of(config), "llama");
  config.window = 8;
  EXPECT_EQ(family_of(config), "mistral");
  config.window_layers = "1";
  EXPECT_THROW(family_of(config), ConfigError);
  config.qk_norm = true;
  EXPECT_EQ(family_of(config), "qwen3");
  config.family = "qwen2";
  try {
    family_of(config);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("qwen2 has biases on q, k and v"));
  }
}

/// A folder that is gone afterwards.
class Folder : public ::testing::Test {
 protected:
  Folder() : path_(fs::path(::testing::TempDir()) / fmt::format("model{}", ::getpid())) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() override { fs::remove_all(path_); }

  void put(const std::string& name, std::string_view text) { write_file_atomically(path_ / name, text); }
  /// Values that tell tensor and element apart.
  static float value(const std::string& parameter, Index element) {
    return static_cast<float>(std::hash<std::string>()(parameter) % 8) +
           0.25f * static_cast<float>(element % 32);
  }
  void write(const ModelConfig& config, DType dtype, std::uint64_t most_bytes = 5'000'000'000) {
    const auto alone = comm::make_local_communicator("test");
    FolderOptions options;
    options.dtype = dtype;
    options.most_bytes = most_bytes;
    options.overwrite = true;
    write_model_folder(
        path_, config,
        [](const std::string& parameter, Index first, Index count, float* out) {
          for (Index i = 0; i < count; ++i) out[i] = value(parameter, first + i);
        },
        options, *alone);
  }
  std::string refusal() {
    try {
      const ModelFolder folder(path_);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }
  fs::path path_;
};

TEST_F(Folder, HoldsWhatWasWrittenInEveryTypeAndNumberOfFiles) {
  for (const char* type : {"llama", "qwen3", "phi3"})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (const std::uint64_t most_bytes : {5'000'000'000ull, 400ull}) {
        const ModelConfig config = read(of_type(type));
        write(config, dtype, most_bytes);
        EXPECT_EQ(fs::exists(path_ / "model.safetensors"), most_bytes > 1000);
        EXPECT_EQ(fs::exists(path_ / "model.safetensors.index.json"), most_bytes < 1000);
        const ModelFolder folder(path_);
        EXPECT_EQ(model::to_json(folder.config()), model::to_json(config));
        for (const model::UnitSpec& unit : model::describe_units(config))
          for (const model::ParameterSpec& p : unit.parameters) {
            const Index first = p.elements() / 3, count = p.elements() / 2;
            std::vector<float> found(static_cast<std::size_t>(count));
            folder.read(p.name, first, count, found.data());
            for (Index i = 0; i < count; ++i)
              ASSERT_EQ(found[static_cast<std::size_t>(i)], value(p.name, first + i)) << p.name;
            EXPECT_EQ(folder.dtype_of(p.name), dtype);
          }
      }
}

TEST_F(Folder, JoinedTensorsHaveTheRowsOfTheirParts) {
  write(read(of_type("phi3")), DType::f32);
  const SafetensorsFile file(path_ / "model.safetensors");
  const NamedTensor& qkv = file.tensor("model.layers.1.self_attn.qkv_proj.weight");
  EXPECT_THAT(qkv.shape, ElementsAre(3 * 4 + 2 * 4, 12));
  const std::vector<float> values = file.floats(qkv.name);
  EXPECT_EQ(values[12 * 12], value("model.layers.1.self_attn.k_proj.weight", 0));
  EXPECT_EQ(values[16 * 12 + 5], value("model.layers.1.self_attn.v_proj.weight", 5));
  EXPECT_FALSE(file.contains("model.layers.1.self_attn.q_proj.weight"));
}

TEST_F(Folder, ListsTensorsThatAreMissingSurplusOrMisshapen) {
  write(read(llama()), DType::f32);
  Json config = read_json(path_ / "config.json");
  config["num_hidden_layers"] = 1;
  config["intermediate_size"] = 9;
  put("config.json", config.dump());
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("model.layers.0.mlp.down_proj.weight is [12, 7] in fp32, expected [12, 9]"),
                    HasSubstr("model.layers.1.mlp.up_proj.weight is no parameter of this model")));
  config["num_hidden_layers"] = 3;
  config["intermediate_size"] = 7;
  put("config.json", config.dump());
  EXPECT_THAT(refusal(), HasSubstr("model.layers.2.input_layernorm.weight [12] is missing"));
  config["num_hidden_layers"] = 40;
  put("config.json", config.dump());
  EXPECT_THAT(refusal(), HasSubstr("and 322 more"));
}

TEST_F(Folder, ATiedHeadMayStandInTheFiles) {
  write(read(llama()), DType::f32);
  Json config = read_json(path_ / "config.json");
  config["tie_word_embeddings"] = true;
  put("config.json", config.dump());
  EXPECT_EQ(refusal(), "none");
}

TEST_F(Folder, FindsTheFilesOrSaysWhatIsThere) {
  put("config.json", llama().dump());
  EXPECT_THAT(refusal(), AllOf(HasSubstr("no file model.safetensors"), Not(HasSubstr("other weights"))));
  put("pytorch_model.bin", "");
  EXPECT_THAT(refusal(), HasSubstr("other weights cartan does not read"));
  write(read(llama()), DType::f32);
  fs::rename(path_ / "model.safetensors", path_ / "a.safetensors");
  EXPECT_EQ(refusal(), "none");
  fs::copy(path_ / "a.safetensors", path_ / "b.safetensors");
  EXPECT_THAT(refusal(), HasSubstr("2 files *.safetensors, but no model.safetensors.index.json"));
  const auto index = [&](const Json& map) {
    put("model.safetensors.index.json", Json{{"weight_map", map}}.dump());
  };
  index({{"x", "a.safetensors"}, {"y", "b.safetensors"}});
  EXPECT_THAT(refusal(), HasSubstr("lm_head.weight is in two files"));
  index({{"x", "a.safetensors"}});
  EXPECT_EQ(refusal(), "none");
  for (const char* name : {"../a.safetensors", "/etc/passwd", "", ".", ".."}) {
    index({{"x", name}});
    EXPECT_THAT(refusal(),
                AnyOf(HasSubstr("expected the name of a file in the same folder"), HasSubstr("..")))
        << name;
  }
  index({{"x", 5}});
  EXPECT_THAT(refusal(), HasSubstr("expected the name of a file"));
  index({{"x", "c.safetensors"}});
  EXPECT_THAT(refusal(), HasSubstr("c.safetensors"));
  put("model.safetensors.index.json", "[]");
  EXPECT_THAT(refusal(), HasSubstr("expected an object with an object weight_map"));
}

TEST_F(Folder, AnotherModelIsNotWrittenOverWithoutBeingAsked) {
  write(read(llama()), DType::f32, 400);
  const auto alone = comm::make_local_communicator("test");
  const ReadParameter zeros = [](const std::string&, Index, Index count, float* out) {
    std::fill_n(out, count, 0.0f);
  };
  EXPECT_THROW(write_model_folder(path_, read(llama()), zeros, {}, *alone), ConfigError);
  EXPECT_EQ(refusal(), "none");
  write(read(llama()), DType::f32);
  EXPECT_EQ(refusal(), "none");
  EXPECT_FALSE(fs::exists(path_ / "model.safetensors.index.json"))
      << "what would be taken for this model's is gone";
}

TEST_F(Folder, APieceThatCannotBeReadLeavesNothingBehind) {
  const auto alone = comm::make_local_communicator("test");
  const ReadParameter fails = [](const std::string& name, Index, Index count, float* out) {
    if (name == "lm_head.weight") throw DataError("{} is damaged", name);
    std::fill_n(out, count, 0.0f);
  };
  FolderOptions options;
  options.dtype = DType::f16;
  EXPECT_THROW(write_model_folder(path_ / "new", read(llama()), fails, options, *alone), DataError);
  EXPECT_TRUE(fs::is_empty(path_ / "new"));
  const ReadParameter large = [](const std::string&, Index, Index count, float* out) {
    std::fill_n(out, count, 7e4f);
  };
  try {
    write_model_folder(path_ / "new", read(llama()), large, options, *alone);
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("model.embed_tokens.weight has the element 70000, which fp16 cannot hold"));
  }
  EXPECT_TRUE(fs::is_empty(path_ / "new"));
}

TEST_F(Folder, PassesATokenizerAndItsTokensOn) {
  put("tokenizer.json", "{}");
  put("chat_template.jinja", "x");
  Json config = llama();
  config["eos_token_id"] = {3, 5};
  put("config.json", config.dump());
  const auto alone = comm::make_local_communicator("test");
  const ReadParameter zeros = [](const std::string&, Index, Index count, float* out) {
    std::fill_n(out, count, 0.0f);
  };
  FolderOptions options;
  options.tokenizer_from = path_;
  write_model_folder(path_ / "new", read(llama()), zeros, options, *alone);
  EXPECT_EQ(read_file(path_ / "new/tokenizer.json"), "{}");
  EXPECT_EQ(read_file(path_ / "new/chat_template.jinja"), "x");
  EXPECT_EQ(read_json(path_ / "new/config.json")["eos_token_id"], Json({3, 5}));
  EXPECT_TRUE(read_json(path_ / "new/config.json")["bos_token_id"].is_null());
  EXPECT_EQ(read_json(path_ / "new/generation_config.json")["eos_token_id"], Json({3, 5}));
}

TEST_F(Folder, NamesTheTokensThatEndATextWhereItsFilesDo) {
  EXPECT_THAT(read_end_tokens(path_), ElementsAre());
  put("config.json", R"({"eos_token_id": 7})");
  EXPECT_THAT(read_end_tokens(path_), ElementsAre(7));
  put("generation_config.json", R"({"eos_token_id": null, "temperature": 0.6})");
  EXPECT_THAT(read_end_tokens(path_), ElementsAre(7));
  put("generation_config.json", R"({"eos_token_id": [128001, 128009]})");
  EXPECT_THAT(read_end_tokens(path_), ElementsAre(128001, 128009));
  for (const char* wrong : {"\"</s>\"", "-1", "[1, 2.5]", "4294967296", "{}"}) {
    put("generation_config.json", fmt::format(R"({{"eos_token_id": {}}})", wrong));
    try {
      read_end_tokens(path_);
      ADD_FAILURE() << wrong;
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("generation_config.json: eos_token_id = "), HasSubstr("token id")));
    }
  }
}

class SafetensorsHeader : public Folder {
 protected:
  /// What a file of 8 bytes with this header is refused with.
  std::string message(const std::string& header) {
    const std::uint64_t length = header.size();
    std::string file(8, '\0');
    std::memcpy(file.data(), &length, 8);
    put("file.safetensors", file + header + std::string(8, '\0'));
    try {
      const SafetensorsFile opened(path_ / "file.safetensors");
    } catch (const DataError& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(SafetensorsHeader, WithATensorTwiceIsRefused) {
  EXPECT_THAT(
      message(
          R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})"),
      HasSubstr("two tensors have the name a"));
}

TEST_F(SafetensorsHeader, WithNumbersThatAreNotWholeIsRefused) {
  // Found by the fuzzer: 9e20 is a fraction for the JSON library, and no integer.
  for (const char* const shape :
       {"[922337203685477580742]", "[1.0]", "[-1]", "[18446744073709551615]", "1", "[[1]]"})
    EXPECT_THAT(message(fmt::format(R"({{"a":{{"dtype":"F64","shape":{},"data_offsets":[0,8]}}}})", shape)),
                HasSubstr(fmt::format("tensor a has shape = ")))
        << shape;
  for (const char* const offsets : {"[0,8.5]", "[0]", "[-1,8]", "{}", "[0,1e300]"})
    EXPECT_THAT(message(fmt::format(R"({{"a":{{"dtype":"F64","shape":[1],"data_offsets":{}}}}})", offsets)),
                HasSubstr("tensor a has data_offsets = "))
        << offsets;
}

}  // namespace
}  // namespace cartan::store
