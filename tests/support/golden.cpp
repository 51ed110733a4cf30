#include "support/golden.hpp"

#include <algorithm>

#include "cartan/core/json.hpp"
#include "cartan/store/model_config_file.hpp"
#include "cartan/store/model_folder.hpp"
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
  for (const std::string name :
       {"llama3-tiny", "llama-tied-tiny", "qwen2-tiny", "qwen3-tiny", "phi3-tiny", "phi3-longrope-tiny"}) {
    const bool complete = find_golden("models/" + name) &&
                          std::all_of(expected_files.begin(), expected_files.end(), [&](const auto& file) {
                            return find_golden("expected/" + name + "/" + file).has_value();
                          });
    if (complete) names.push_back(name);
  }
  return names;
}

model::ModelConfig read_hf_config(const fs::path& folder) {
  return store::read_model_config(folder / "config.json");
}

train::Tensors read_hf_tensors(const fs::path& folder) {
  const store::ModelFolder model(folder);
  train::Tensors tensors;
  for (const model::UnitSpec& unit : model::describe_units(model.config()))
    for (const model::ParameterSpec& p : unit.parameters) {
      std::vector<float>& values = tensors[p.name];
      values.resize(static_cast<std::size_t>(p.elements()));
      model.read(p.name, 0, p.elements(), values.data());
    }
  return tensors;
}

train::Tensors read_expected(const fs::path& path, const model::ModelConfig& config) {
  const store::SafetensorsFile file(path);
  std::map<std::string, Index> elements;
  for (const model::UnitSpec& unit : model::describe_units(config))
    for (const model::ParameterSpec& p : unit.parameters) elements[p.name] = p.elements();
  train::Tensors tensors;
  for (const store::FileTensor& tensor : store::file_tensors(config)) {
    const std::vector<float> all = file.floats(tensor.name);
    for (const store::FileTensor::Part& part : tensor.parts)
      tensors[part.parameter].assign(all.begin() + part.first,
                                     all.begin() + part.first + elements.at(part.parameter));
  }
  return tensors;
}

void fill_parameters(shard::FlatState& state, const train::Tensors& tensors) {
  const auto fill = [&](const model::ParameterSpec& p, Index begin, Index end, const auto& place_of) {
    const std::vector<float>& values = tensors.at(p.name);
    model::for_each_run(p, begin, end, [&](Index whole, Index part, Index count) {
      ASSERT_LE(whole + count, std::ssize(values)) << p.name;
      const device::Vector to = place_of(p.offset + part, count);
      ASSERT_EQ(to.dtype, DType::f32) << p.name;
      upload(state.device(), to.data,
             std::vector<float>(values.begin() + whole, values.begin() + whole + count));
    });
  };
  shard::for_each_part(state.layout(), &shard::GradientPart::owned,
                       [&](std::size_t unit, const model::ParameterSpec& p, Index begin, Index end) {
                         fill(p, begin, end,
                              [&](Index first, Index count) { return state.master(unit, first, count); });
                       });
  shard::for_each_frozen_part(
      state.layout(), [&](std::size_t unit, const model::ParameterSpec& p, Index begin, Index end) {
        fill(p, begin, end, [&](Index first, Index count) { return state.frozen(unit, first, count); });
      });
  state.refresh_compute();
}

}  // namespace cartan::testing
