#include "cartan/train/snapshot.hpp"

#include <array>

#include "cartan/core/json.hpp"
#include "cartan/core/narrow.hpp"

namespace cartan::train {
namespace {

// The three flat buffers that are saved.
struct Part {
  const char* prefix;
  device::Vector (shard::FlatState::*view)(Index, Index) const;
};
constexpr std::array kParts{Part{"model/", &shard::FlatState::master},
                            Part{"optimizer/exp_avg/", &shard::FlatState::exp_avg},
                            Part{"optimizer/exp_avg_sq/", &shard::FlatState::exp_avg_sq}};

template <class Visit>
void for_each_parameter(const shard::FlatLayout& layout, const Visit& visit) {
  for (const shard::FlatUnit& unit : layout.units())
    for (const model::ParameterSpec& parameter : unit.spec->parameters)
      visit(parameter, unit.parameter_begin + parameter.offset);
}

}  // namespace

Json to_json(const RunState& state, const model::ModelConfig& model, Index tree_leaves,
             const std::string& config_ini) {
  return Json{{"step", state.step},  {"samples", state.samples},   {"tokens", state.tokens},
              {"loss", state.loss},  {"tree_leaves", tree_leaves}, {"model", model::to_json(model)},
              {"config", config_ini}};
}

RunState run_state_from_json(const Json& json, const std::string& where) {
  RunState state;
  try {
    json.at("step").get_to(state.step);
    json.at("samples").get_to(state.samples);
    json.at("tokens").get_to(state.tokens);
    json.at("loss").get_to(state.loss);
  } catch (const nlohmann::json::exception& error) {
    throw DataError("{}: the state is incomplete: {}", where, error.what());
  }
  return state;
}

std::vector<store::TensorInfo> checkpoint_tensors(const shard::FlatLayout& layout) {
  std::vector<store::TensorInfo> tensors;
  for (const Part& part : kParts)
    for_each_parameter(layout, [&](const model::ParameterSpec& parameter, Index) {
      tensors.push_back({part.prefix + parameter.name, DType::f32, parameter.shape});
    });
  return tensors;
}

std::vector<store::Slab> checkpoint_slabs(const shard::FlatState& state, int rank, int size) {
  CARTAN_ASSERT(state.device().kind() == device::DeviceKind::cpu);
  std::vector<store::Slab> slabs;
  std::size_t tensor = 0;
  for (const Part& part : kParts)
    for_each_parameter(state.layout(), [&](const model::ParameterSpec& parameter, Index begin) {
      const LeafRange mine = leaf_range(parameter.elements(), rank, size);
      if (mine.begin < mine.end)
        slabs.push_back({tensor, mine.begin, mine.end - mine.begin,
                         (state.*part.view)(begin + mine.begin, mine.end - mine.begin).data});
      ++tensor;
    });
  return slabs;
}

void load(const store::CheckpointReader& reader, const std::filesystem::path& path,
          const model::ModelConfig& model, bool moments, shard::FlatState& state) {
  CARTAN_ASSERT(state.device().kind() == device::DeviceKind::cpu);
  const Json wanted = model::to_json(model);
  if (!reader.state().contains("model")) throw DataError("{}: no model description", path.string());
  const Json& found = reader.state()["model"];
  Problems problems;
  for (const auto& [key, value] : wanted.items())
    if (key != "init_std" && (!found.contains(key) || found[key] != value))
      problems.add(
          "{} holds {} = {}, the configuration says {}: use the model of the checkpoint or another run.dir",
          path.string(), key, found.contains(key) ? found[key].dump() : "nothing", value.dump());
  problems.throw_if_any("the checkpoint");
  for (const Part& part : kParts) {
    if (!moments && &part != kParts.data()) break;
    for_each_parameter(state.layout(), [&](const model::ParameterSpec& parameter, Index begin) {
      const std::string name = part.prefix + parameter.name;
      const store::TensorInfo& info = reader.tensor(name);
      if (info.shape != parameter.shape || info.dtype != DType::f32)
        throw DataError("{}: {} has shape [{}] in {}, expected [{}] in fp32", path.string(), name,
                        fmt::join(info.shape, ", "), name_of(info.dtype), fmt::join(parameter.shape, ", "));
      reader.read(name, 0, parameter.elements(), (state.*part.view)(begin, parameter.elements()).data);
    });
  }
  state.refresh_compute();
}

}  // namespace cartan::train
