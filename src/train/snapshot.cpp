#include "cartan/train/snapshot.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>

#include "cartan/core/json.hpp"
#include "cartan/core/narrow.hpp"

namespace cartan::train {
namespace {

// The three flat buffers that are saved.
struct Part {
  const char* prefix;
  device::Vector (shard::FlatState::*view)(std::size_t, Index, Index) const;
};
constexpr std::array kParts{Part{"model/", &shard::FlatState::master},
                            Part{"optimizer/exp_avg/", &shard::FlatState::exp_avg},
                            Part{"optimizer/exp_avg_sq/", &shard::FlatState::exp_avg_sq}};

constexpr const char* kFp8History = "fp8/amax_history";

/// Reads elements [begin, end) of a parameter's part into `out`. Where they lie in short runs, whole rows are
/// read and the columns picked.
void read_part(const store::CheckpointReader& reader, const std::string& name,
               const model::ParameterSpec& parameter, Index begin, Index end, float* out) {
  constexpr Index kLongRun = 4096, kPiece = Index{1} << 20;
  const Index row = parameter.part.back(), whole_row = parameter.shape.back();
  if (row == whole_row || row >= kLongRun || parameter.tensor_dim != 1) {
    model::for_each_run(parameter, begin, end, [&](Index whole, Index part, Index count) {
      reader.read(name, whole, count, out + (part - begin));
    });
    return;
  }
  std::vector<float> rows;
  const Index rows_at_once = std::max<Index>(1, kPiece / whole_row);
  for (Index first = begin / row; first * row < end; first += rows_at_once) {
    const Index count = std::min<Index>(rows_at_once, ceil_div(end, row) - first);
    rows.resize(narrow<std::size_t>(count * whole_row));
    reader.read(name, first * whole_row, count * whole_row, rows.data());
    const Index from = std::max(begin, first * row), to = std::min(end, (first + count) * row);
    model::for_each_run(parameter, from, to, [&](Index whole, Index part, Index length) {
      std::copy_n(rows.data() + (whole - first * whole_row), length, out + (part - begin));
    });
  }
}

/// The same into memory of the device, in pieces through the host where that cannot write there.
void load_part(const store::CheckpointReader& reader, const std::string& name,
               const model::ParameterSpec& parameter, LeafRange elements, device::Vector to,
               device::Device& device) {
  if (device.kind() == device::DeviceKind::cpu) {
    read_part(reader, name, parameter, elements.begin, elements.end, static_cast<float*>(to.data));
    return;
  }
  constexpr Index kPiece = Index{1} << 24;
  std::vector<float> host;
  for (Index begin = elements.begin; begin < elements.end; begin += kPiece) {
    const Index count = std::min(kPiece, elements.end - begin);
    host.resize(narrow<std::size_t>(count));
    read_part(reader, name, parameter, begin, begin + count, host.data());
    device.copy_in(device::advance(to.data, DType::f32, begin - elements.begin), host.data(),
                   host.size() * sizeof(float), device.compute_stream());
  }
}

}  // namespace

Json to_json(const RunState& state, const model::ModelConfig& model, Index tree_leaves,
             const std::string& config_ini) {
  Json json{{"step", state.step},  {"samples", state.samples},   {"tokens", state.tokens},
            {"loss", state.loss},  {"tree_leaves", tree_leaves}, {"model", model::to_json(model)},
            {"config", config_ini}};
  if (state.loss_scale)
    json["loss_scale"] = {{"scale", state.loss_scale->scale},
                          {"good_steps", state.loss_scale->good_steps},
                          {"hysteresis_left", state.loss_scale->hysteresis_left},
                          {"skipped", state.loss_scale->skipped},
                          {"skipped_steps", state.skipped}};
  return json;
}

RunState run_state_from_json(const Json& json, const std::string& where) {
  RunState state;
  try {
    json.at("step").get_to(state.step);
    json.at("samples").get_to(state.samples);
    json.at("tokens").get_to(state.tokens);
    json.at("loss").get_to(state.loss);
    if (json.contains("loss_scale")) {
      const Json& scale = json.at("loss_scale");
      optim::LossScaleState& to = state.loss_scale.emplace();
      scale.at("scale").get_to(to.scale);
      scale.at("good_steps").get_to(to.good_steps);
      scale.at("hysteresis_left").get_to(to.hysteresis_left);
      scale.at("skipped").get_to(to.skipped);
      scale.at("skipped_steps").get_to(state.skipped);
    }
  } catch (const nlohmann::json::exception& error) {
    throw DataError("{}: the state is incomplete: {}", where, error.what());
  }
  return state;
}

std::vector<store::TensorInfo> checkpoint_tensors(const model::ModelConfig& model,
                                                  const model::Fp8Scales* fp8) {
  std::vector<store::TensorInfo> tensors;
  for (const Part& part : kParts)
    for (const model::UnitSpec& unit : model::describe_units(model))
      for (const model::ParameterSpec& parameter : unit.parameters)
        tensors.push_back({part.prefix + parameter.name, DType::f32, parameter.shape});
  if (fp8 != nullptr) tensors.push_back({kFp8History, DType::f32, fp8->history_shape()});
  return tensors;
}

std::vector<store::Slab> checkpoint_slabs(const std::vector<store::TensorInfo>& tensors,
                                          const shard::FlatState& state, const model::Fp8Scales* fp8,
                                          bool is_first) {
  std::unordered_map<std::string_view, std::size_t> numbers;
  for (std::size_t i = 0; i < tensors.size(); ++i) numbers.emplace(tensors[i].path, i);
  std::vector<store::Slab> slabs;
  for (const Part& part : kParts)
    shard::for_each_part(
        state.layout(), &shard::GradientPart::alone,
        [&](std::size_t unit, const model::ParameterSpec& parameter, Index begin, Index end) {
          if (!parameter.stands_alone || state.layout().units()[unit].is_copy) return;
          const std::size_t tensor = numbers.at(part.prefix + parameter.name);
          model::for_each_run(parameter, begin, end, [&](Index whole, Index at, Index count) {
            slabs.push_back(
                {tensor, whole, count, (state.*part.view)(unit, parameter.offset + at, count).data});
          });
        });
  if (fp8 != nullptr && is_first)
    slabs.push_back({numbers.at(kFp8History), 0, fp8->history().size, fp8->history().data});
  return slabs;
}

void load(const store::CheckpointReader& reader, const std::filesystem::path& path,
          const model::ModelConfig& model, bool moments, shard::FlatState& state) {
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
    shard::for_each_part(
        state.layout(), &shard::GradientPart::owned,
        [&](std::size_t unit, const model::ParameterSpec& parameter, Index begin, Index end) {
          const std::string name = part.prefix + parameter.name;
          const store::TensorInfo& info = reader.tensor(name);
          if (info.shape != parameter.shape || info.dtype != DType::f32)
            throw DataError("{}: {} has shape [{}] in {}, expected [{}] in fp32", path.string(), name,
                            fmt::join(info.shape, ", "), name_of(info.dtype),
                            fmt::join(parameter.shape, ", "));
          load_part(reader, name, parameter, {begin, end},
                    (state.*part.view)(unit, parameter.offset + begin, end - begin), state.device());
        });
  }
}

void load_fp8(const store::CheckpointReader& reader, model::Fp8Scales& fp8) {
  if (!reader.has(kFp8History)) return;
  const store::TensorInfo& info = reader.tensor(kFp8History);
  const std::vector<Index> expected = fp8.history_shape();
  // The number of steps may be another one.
  if (info.dtype != DType::f32 || info.shape.size() != expected.size() ||
      !std::equal(expected.begin() + 1, expected.end(), info.shape.begin() + 1))
    throw DataError("{}: {} has shape [{}] in {}, expected [{}] in fp32", reader.path().string(), kFp8History,
                    fmt::join(info.shape, ", "), name_of(info.dtype), fmt::join(expected, ", "));
  std::vector<float> history(narrow<std::size_t>(info.elements()));
  reader.read(kFp8History, 0, info.elements(), history.data());
  fp8.restore(history);
}

}  // namespace cartan::train
