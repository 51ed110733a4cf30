// The fuzzer's entry point over small files and thousands of changes of them, the same in every run.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace cartan {
namespace {

void run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
}

template <class T>
std::string bytes_of(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string safetensors(const std::string& header, std::size_t data) {
  return "s" + bytes_of(std::uint64_t{header.size()}) + header + std::string(data, '\3');
}

/// Two sequences of 3 and 5 tokens of 16 bits in two documents... and 24 that nobody names.
std::string index() {
  std::string file = std::string("iMMIDIDX") + '\0' + '\0' + bytes_of(std::uint64_t{1}) + '\x8' +
                     bytes_of(std::uint64_t{2}) + bytes_of(std::uint64_t{3});
  for (const std::int32_t length : {12, 20}) file += bytes_of(length);
  for (const std::int64_t offset : {0, 24}) file += bytes_of(offset);
  for (const std::int64_t document : {0, 1, 2}) file += bytes_of(document);
  return file;
}

std::vector<std::string> seeds() {
  const std::string sizes =
      R"("vocab_size":11,"hidden_size":16,"num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":2,)"
      R"("intermediate_size":7,"max_position_embeddings":64,)";
  return {
      R"(c{"model_type":"llama",)" + sizes +
          R"("rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1,"high_freq_factor":4}})",
      R"(c{"model_type":"qwen3",)" + sizes +
          R"("layer_types":["full_attention","sliding_attention","full_attention"],"sliding_window":9,"use_sliding_window":true})",
      R"(c{"model_type":"phi3",)" + sizes +
          R"("partial_rotary_factor":0.5,"original_max_position_embeddings":16,"rope_parameters":{"rope_type":"longrope","short_factor":[1],"long_factor":[2.5]}})",
      R"(c{"model_type":"mistral",)" + sizes +
          R"("rope_parameters":{"rope_type":"yarn","factor":4,"mscale":1.5,"mscale_all_dim":0.5,"rope_theta":500}})",
      safetensors(
          R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},"c":{"dtype":"F16","shape":[],"data_offsets":[32,34]},"d":{"dtype":"I64","shape":[0,9],"data_offsets":[34,34]}})",
          34),
      safetensors(R"({"a":{"dtype":"F64","shape":[9223372036854775807,2],"data_offsets":[0,8]}})", 8),
      safetensors(R"({"a":{"dtype":"F64","shape":[922337203685477580742],"data_offsets":[0,8]}})", 8),
      index(),
      R"(a{"peft_type":"LORA","r":1,"lora_alpha":2,"lora_dropout":0.1,"use_rslora":true})" +
          std::string(1, '\0') +
          safetensors(
              R"({"base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight":{"dtype":"F32","shape":[1,8],"data_offsets":[0,32]},"base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight":{"dtype":"F32","shape":[8,1],"data_offsets":[32,64]}})",
              64)
              .substr(1),
      R"(a{"peft_type":"LORA","r":1e300,"lora_alpha":2})" + std::string(1, '\0'),
  };
}

TEST(FilesFuzz, GoodFiles) {
  for (const std::string& file : seeds()) run(file);
  run("");
  for (const char kind : {'c', 's', 'i', 'x'}) run(std::string(1, kind));
}

TEST(FilesFuzz, ChangedFiles) {
  std::mt19937 random(99);
  const std::vector<std::string> all = seeds();
  const std::vector<std::string> pieces = {"null",
                                           "-1",
                                           "1e999",
                                           "1e9",
                                           "\"\"",
                                           "[]",
                                           "{}",
                                           "true",
                                           "18446744073709551615",
                                           "\"\xff\"",
                                           "[[[[",
                                           "0.3",
                                           std::string(8, '\xff'),
                                           std::string(4, '\0'),
                                           "\"shape\"",
                                           "\"data_offsets\":[0,4]"};
  for (int round = 0; round < 20000; ++round) {
    std::string file = all[random() % all.size()];
    for (unsigned change = 0; change <= random() % 3; ++change) {
      const std::size_t at = 1 + random() % file.size();
      if (at >= file.size()) continue;
      switch (random() % 5) {
        case 0:
          file[at] = static_cast<char>(random());
          break;
        case 1:
          file.erase(at, 1 + random() % 12);
          break;
        case 2:
          file.insert(at, pieces[random() % pieces.size()]);
          break;
        case 3:
          file.replace(at, std::min<std::size_t>(8, file.size() - at), pieces[random() % pieces.size()]);
          break;
        default: {  // a value becomes another
          const std::size_t colon = file.find(':', at);
          if (colon == std::string::npos) break;
          const std::size_t end = std::min(file.find_first_of(",}", colon), file.size());
          file.replace(colon + 1, end - colon - 1, pieces[random() % pieces.size()]);
        }
      }
    }
    run(file);
  }
}

}  // namespace
}  // namespace cartan
