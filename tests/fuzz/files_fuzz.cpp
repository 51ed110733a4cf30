// Files that anyone may have written: each is used as what it claims to be, or refused with a reason.
//   input    a byte that says which reader, then the file
//            c: a config.json; s: a *.safetensors; i: an .idx beside a .bin of 64 bytes; a: an
//            adapter_config.json, a byte 0, and an adapter_model.safetensors
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "cartan/core/error.hpp"
#include "cartan/core/json.hpp"
#include "cartan/data/indexed_dataset.hpp"
#include "cartan/model/adapters.hpp"
#include "cartan/model/parameters.hpp"
#include "cartan/store/adapter_folder.hpp"
#include "cartan/store/model_config_file.hpp"
#include "cartan/store/safetensors.hpp"

namespace {

using namespace cartan;

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "files_fuzz: %s\n", what);
  std::abort();
}

/// A file of this process that is written anew for each input.
std::string put(const char* ending, std::string_view content) {
  static const std::string stem = [] {
    const bool has_memory = ::access("/dev/shm", W_OK) == 0;
    const std::string folder = has_memory ? "/dev/shm" : std::filesystem::temp_directory_path().string();
    return folder + "/cartan_fuzz" + std::to_string(::getpid());
  }();
  std::ofstream(stem + ending, std::ios::binary) << content;
  return stem + ending;
}

void use_config(std::string_view text) {
  const model::ModelConfig config =
      store::model_config_from_hugging_face(parse_json(text, "config.json"), "config.json");
  // What is read can be written, and is the same when it is read again.
  const Json written = store::model_config_to_hugging_face(config, DType::f32);
  const model::ModelConfig again = store::model_config_from_hugging_face(written, "written");
  check(model::to_json(again) == model::to_json(config), "another model comes back");
}

void use_safetensors(std::string_view content) {
  const store::SafetensorsFile file(put(".safetensors", content));
  std::size_t bytes = 0;
  for (const store::NamedTensor& tensor : file.tensors()) {
    check(file.contains(tensor.name), "a tensor is not found");
    bytes += tensor.bytes.size();
    if (tensor.dtype != DType::e4m3 && tensor.dtype != DType::e5m2) file.floats(tensor.name);
  }
  check(bytes <= content.size(), "tensors overlap");
}

void use_index(std::string_view content) {
  put(".bin", std::string(64, '\1'));
  const std::string path = put(".idx", content);
  const data::IndexedDataset dataset(path);
  Index tokens = 0;
  for (Index i = 0; i < dataset.sequences(); ++i) tokens += dataset.sequence_tokens(i).size();
  check(tokens == dataset.tokens(), "sequences do not add up");
  for (Index i = 0; i < dataset.documents(); ++i) {
    const data::IndexRange range = dataset.document_tokens(i);
    check(range.begin >= 0 && range.end <= tokens, "a document lies outside");
  }
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
  dataset.read_tokens(0, ids);
}

void use_adapters(std::string_view content) {
  const std::size_t end = content.find('\0');
  if (end == std::string_view::npos) return;
  const std::filesystem::path folder = put("", "") + "_adapters";
  std::filesystem::create_directory(folder);
  std::ofstream(folder / "adapter_config.json", std::ios::binary) << content.substr(0, end);
  std::ofstream(folder / "adapter_model.safetensors", std::ios::binary) << content.substr(end + 1);
  const store::AdapterFolder adapters(folder);
  model::ModelConfig config;
  config.hidden = 8;
  config.layers = 2;
  config.heads = config.kv_heads = 2;
  config.head_dim = 4;
  config.ffn = 6;
  config.vocab = 5;
  config.lora = adapters.lora();
  Problems problems;
  model::check_trained(config, problems);
  if (!problems.empty()) return;
  adapters.check(config);
  for (const model::UnitSpec& unit : model::describe_units(config))
    for (const model::ParameterSpec& parameter : unit.parameters) {
      if (!model::is_adapter(parameter.name)) continue;
      check(adapters.has(parameter.name), "an adapter that was checked is missing");
      std::vector<float> values(static_cast<std::size_t>(parameter.elements()));
      adapters.read(parameter.name, 0, parameter.elements(), values.data());
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view content(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] == 'c') use_config(content);
    if (data[0] == 's') use_safetensors(content);
    if (data[0] == 'i') use_index(content);
    if (data[0] == 'a') use_adapters(content);
  } catch (const DataError&) {
    // What is wrong with the file.
  } catch (const ConfigError&) {
    // A mixture that no family of models has.
  }
  return 0;
}
