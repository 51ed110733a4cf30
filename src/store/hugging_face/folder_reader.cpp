#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "cartan/core/json.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/model/adapters.hpp"
#include "cartan/store/model_config_file.hpp"
#include "cartan/store/model_folder.hpp"

namespace cartan::store {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndex = "model.safetensors.index.json";

/// The files that the index lists.
std::vector<std::string> files_of_index(const fs::path& path) {
  const Json index = read_json(path);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object())
    throw DataError("{}: expected an object with an object weight_map, which names the file of each tensor",
                    path.string());
  std::set<std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : std::string();
    const bool is_name = !name.empty() && name != "." && name != ".." && fs::path(name).filename() == name;
    if (!is_name)
      throw DataError("{}: weight_map puts {} into {}: expected the name of a file in the same folder",
                      path.string(), tensor.substr(0, 80),
                      file.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 80));
    files.insert(name);
  }
  return {files.begin(), files.end()};
}

std::vector<std::string> find_files(const fs::path& folder) {
  if (fs::exists(folder / kIndex)) return files_of_index(folder / kIndex);
  std::vector<std::string> found;
  bool has_other_weights = false;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors")) found.push_back(name);
    has_other_weights =
        has_other_weights || name.ends_with(".bin") || name.ends_with(".gguf") || name.ends_with(".pt");
  }
  if (std::find(found.begin(), found.end(), "model.safetensors") != found.end()) return {"model.safetensors"};
  if (found.size() == 1) return found;
  if (found.empty())
    throw MissingError(
        "{}: no file model.safetensors{}", folder.string(),
        has_other_weights ? "; other weights cartan does not read: save the model as safetensors" : "");
  throw DataError("{}: {} files *.safetensors, but no {}, which says what belongs together", folder.string(),
                  found.size(), kIndex);
}

/// What older versions of transformers wrote beside the parameters, and can be computed; and the head of a
/// model whose head is the embedding.
bool may_be_left_out(const std::string& name, const model::ModelConfig& config) {
  return name.ends_with(".rotary_emb.inv_freq") || (config.tied && name == "lm_head.weight");
}

bool is_parameter_type(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

/// The tensor of the files that holds a parameter of a Phi-3 model, where that is another one.
struct Fused {
  const char* own;
  const char* joint;
};
constexpr Fused kFused[] = {{"self_attn.q_proj.weight", "self_attn.qkv_proj.weight"},
                            {"self_attn.k_proj.weight", "self_attn.qkv_proj.weight"},
                            {"self_attn.v_proj.weight", "self_attn.qkv_proj.weight"},
                            {"mlp.gate_proj.weight", "mlp.gate_up_proj.weight"},
                            {"mlp.up_proj.weight", "mlp.gate_up_proj.weight"}};

std::string file_name_of(const std::string& parameter, bool fuses) {
  if (fuses)
    for (const Fused& fused : kFused)
      if (parameter.ends_with(fused.own))
        return parameter.substr(0, parameter.size() - std::string_view(fused.own).size()) + fused.joint;
  return parameter;
}

}  // namespace

Index FileTensor::elements() const {
  return std::accumulate(shape.begin(), shape.end(), Index{1}, std::multiplies<>());
}

std::vector<FileTensor> file_tensors(const model::ModelConfig& config) {
  const bool fuses = family_of(config) == "phi3";
  std::vector<FileTensor> tensors;
  for (const model::UnitSpec& unit : model::describe_units(model::without_adapters(config)))
    for (const model::ParameterSpec& parameter : unit.parameters) {
      std::string name = file_name_of(parameter.name, fuses);
      // Those of one tensor follow each other.
      if (tensors.empty() || tensors.back().name != name) {
        tensors.push_back({std::move(name), parameter.shape, {{parameter.name, 0}}});
        continue;
      }
      FileTensor& joint = tensors.back();
      joint.parts.push_back({parameter.name, joint.elements()});
      joint.shape[0] += parameter.shape[0];
    }
  return tensors;
}

bool is_model_folder(const fs::path& path) { return fs::is_regular_file(path / "config.json"); }

ModelFolder::ModelFolder(const fs::path& path)
    : path_(path), config_(read_model_config(path / "config.json")) {
  for (const std::string& file : find_files(path)) files_.emplace_back(path / file);
  Problems problems;
  std::unordered_map<std::string, const NamedTensor*> found;
  for (const SafetensorsFile& file : files_)
    for (const NamedTensor& tensor : file.tensors())
      if (!found.emplace(tensor.name, &tensor).second) problems.add("{} is in two files", tensor.name);
  for (const FileTensor& wanted : file_tensors(config_)) {
    const auto at = found.find(wanted.name);
    if (at == found.end()) {
      problems.add("{} [{}] is missing", wanted.name, fmt::join(wanted.shape, ", "));
      continue;
    }
    const NamedTensor& tensor = *at->second;
    if (tensor.shape != wanted.shape || !is_parameter_type(tensor.dtype))
      problems.add("{} is [{}] in {}, expected [{}] in fp32, bf16 or fp16", wanted.name,
                   fmt::join(tensor.shape, ", "), name_of(tensor.dtype), fmt::join(wanted.shape, ", "));
    for (const FileTensor::Part& part : wanted.parts)
      places_.emplace(part.parameter, Place{&tensor, part.first});
    found.erase(at);
  }
  std::vector<std::string> surplus;
  for (const auto& [name, tensor] : found)
    if (!may_be_left_out(name, config_)) surplus.push_back(name);
  std::sort(surplus.begin(), surplus.end());
  for (const std::string& name : surplus) problems.add("{} is no parameter of this model", name);
  if (problems.empty()) return;
  constexpr std::size_t kShown = 20;
  std::span<const std::string> lines = problems.lines();
  std::string more;
  if (lines.size() > kShown) {
    more = fmt::format("\n  and {} more", lines.size() - kShown);
    lines = lines.first(kShown);
  }
  throw DataError("{}: the tensors are not those of the {} model in config.json:\n  {}{}", path.string(),
                  config_.family, fmt::join(lines, "\n  "), more);
}

const ModelFolder::Place& ModelFolder::place_of(const std::string& parameter) const {
  const auto at = places_.find(parameter);
  if (at == places_.end()) throw InternalError("{} has no parameter {}", path_.string(), parameter);
  return at->second;
}

void ModelFolder::read(const std::string& parameter, Index first, Index count, float* out) const {
  const Place& place = place_of(parameter);
  read_floats(*place.tensor, place.first + first, count, out);
}

}  // namespace cartan::store
