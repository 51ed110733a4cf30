#include "cartan/train/snapshot.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <string_view>
#include <thread>
#include <unordered_map>

#include "cartan/core/convert.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/model/adapters.hpp"

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
void read_part(const ReadElements& read, const model::ParameterSpec& parameter, Index begin, Index end,
               float* out) {
  constexpr Index kLongRun = 4096, kPiece = Index{1} << 20;
  const Index row = parameter.part.back(), whole_row = parameter.shape.back();
  if (row == whole_row || row >= kLongRun || parameter.tensor_dim != 1) {
    model::for_each_run(parameter, begin, end, [&](Index whole, Index part, Index count) {
      read(parameter, whole, count, out + (part - begin));
    });
    return;
  }
  std::vector<float> rows;
  const Index rows_at_once = std::max<Index>(1, kPiece / whole_row);
  for (Index first = begin / row; first * row < end; first += rows_at_once) {
    const Index count = std::min<Index>(rows_at_once, ceil_div(end, row) - first);
    rows.resize(narrow<std::size_t>(count * whole_row));
    read(parameter, first * whole_row, count * whole_row, rows.data());
    const Index from = std::max(begin, first * row), to = std::min(end, (first + count) * row);
    model::for_each_run(parameter, from, to, [&](Index whole, Index part, Index length) {
      std::copy_n(rows.data() + (whole - first * whole_row), length, out + (part - begin));
    });
  }
}

/// The same into memory of the device, in `to`'s type, in pieces through the host where that cannot read
/// right into it.
void load_part(const ReadElements& read, const model::ParameterSpec& parameter, LeafRange elements,
               device::Vector to, device::Device& device) {
  if (device.kind() == device::DeviceKind::cpu && to.dtype == DType::f32) {
    read_part(read, parameter, elements.begin, elements.end, static_cast<float*>(to.data));
    return;
  }
  constexpr Index kPiece = Index{1} << 24;
  std::vector<float> host;
  std::vector<std::byte> converted;
  for (Index begin = elements.begin; begin < elements.end; begin += kPiece) {
    const Index count = std::min(kPiece, elements.end - begin);
    host.resize(narrow<std::size_t>(count));
    read_part(read, parameter, begin, begin + count, host.data());
    converted.resize(host.size() * size_of(to.dtype));
    convert_floats(host, to.dtype, converted);
    device.copy_in(device::advance(to.data, to.dtype, begin - elements.begin), converted.data(),
                   converted.size(), device.compute_stream());
  }
}

/// Runs all of `tasks` on up to `threads` threads; the first failure is rethrown.
void run_all(const std::vector<std::function<void()>>& tasks, int threads) {
  std::atomic<std::size_t> next = 0;
  std::exception_ptr failure;
  std::mutex mutex;
  const auto work = [&] {
    try {
      for (std::size_t i = next++; i < tasks.size(); i = next++) tasks[i]();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = tasks.size();
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int i = 1; i < std::min(threads, narrow<int>(tasks.size())); ++i) helpers.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

/// Fills parts of parameters in pieces that the device's threads share: reading a file that is mapped, new
/// memory and conversions keep more than one of them busy. `place_of` gives the memory of elements of a unit.
class PartLoader {
 public:
  PartLoader(const ReadElements& read, shard::FlatState& state) : read_(read), state_(state) {}

  template <class PlaceOf>
  void add(const model::ParameterSpec& parameter, Index begin, Index end, const PlaceOf& place_of) {
    constexpr Index kPiece = Index{1} << 22;
    for (Index first = begin; first < end; first += kPiece) {
      const Index last = std::min(first + kPiece, end);
      tasks_.emplace_back([this, &parameter, first, last, to = place_of(first, last - first)] {
        load_part(read_, parameter, {first, last}, to, state_.device());
      });
    }
  }
  void run() const { run_all(tasks_, state_.device().threads()); }

 private:
  const ReadElements& read_;
  shard::FlatState& state_;
  std::vector<std::function<void()>> tasks_;
};

void add_owned(const Part& to, shard::FlatState& state, PartLoader& loader) {
  shard::for_each_part(state.layout(), &shard::GradientPart::owned,
                       [&](std::size_t unit, const model::ParameterSpec& parameter, Index begin, Index end) {
                         loader.add(parameter, begin, end, [&](Index first, Index count) {
                           return (state.*to.view)(unit, parameter.offset + first, count);
                         });
                       });
}

/// Names of the matrices of adapters.
std::vector<std::string> adapters_of(const model::ModelConfig& config) {
  std::vector<std::string> names;
  for (const model::UnitSpec& unit : model::describe_units(config))
    for (const model::ParameterSpec& parameter : unit.parameters)
      if (model::is_adapter(parameter.name)) names.push_back(parameter.name);
  return names;
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
  if (state.base)
    json["base"] = {
        {"path", state.base->path}, {"seed", state.base->seed}, {"fingerprint", state.base->fingerprint}};
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
    if (json.contains("base")) {
      const Json& from = json.at("base");
      BaseModel& base = state.base.emplace();
      from.at("path").get_to(base.path);
      from.at("seed").get_to(base.seed);
      from.at("fingerprint").get_to(base.fingerprint);
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
        if (parameter.trained) tensors.push_back({part.prefix + parameter.name, DType::f32, parameter.shape});
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

model::ModelConfig model_of(const store::CheckpointReader& reader) {
  const std::string where = reader.path().string();
  if (!reader.state().contains("model")) throw DataError("{}: no model description", where);
  return model::model_config_from_json(reader.state()["model"], where);
}

std::string parameter_path(const std::string& parameter) { return kParts[0].prefix + parameter; }

void read_parameter(const store::CheckpointReader& reader, const std::string& parameter, Index first,
                    Index count, float* out) {
  reader.read(parameter_path(parameter), first, count, out);
}

void check_tensor(const store::CheckpointReader& reader, const std::string& name,
                  const std::vector<Index>& shape) {
  const store::TensorInfo& info = reader.tensor(name);
  if (info.shape != shape || info.dtype != DType::f32)
    throw DataError("{}: {} has shape [{}] in {}, expected [{}] in fp32", reader.path().string(), name,
                    fmt::join(info.shape, ", "), cartan::name_of(info.dtype), fmt::join(shape, ", "));
}

void check_same_model(const model::ModelConfig& found, const std::filesystem::path& path,
                      const model::ModelConfig& wanted) {
  // What training does not depend on, or nothing but the first values do.
  constexpr std::array<std::string_view, 3> kFree{"init_std", "family", "max_length"};
  Json here = model::to_json(found), there = model::to_json(wanted);
  if (here.contains("lora") && there.contains("lora")) {
    there["lora"]["dropout"] = here["lora"]["dropout"];
    // Other words may name the same layers.
    if (adapters_of(found) == adapters_of(wanted))
      for (const char* const key : {"targets", "layers"}) there["lora"][key] = here["lora"][key];
  }
  Problems problems;
  const auto compare = [&](const Json& keys) {
    for (const auto& item : keys.items()) {
      const std::string& key = item.key();
      const bool is_free = std::find(kFree.begin(), kFree.end(), key) != kFree.end() &&
                           !(key == "max_length" && model::rope_magnitude_follows_length(wanted));
      const Json has = here.value(key, Json()), should = there.value(key, Json());
      if (is_free || has == should || (&keys == &here && there.contains(key))) continue;
      problems.add(
          "{} holds {} = {}, the configuration says {}: use the model of the checkpoint or another run.dir",
          path.string(), key, has.is_null() ? "nothing" : has.dump(),
          should.is_null() ? "nothing" : should.dump());
    }
  };
  compare(there);
  compare(here);
  problems.throw_if_any("the model");
}

void load_parameters(const ReadElements& read, shard::FlatState& state) {
  PartLoader loader(read, state);
  add_owned(kParts[0], state, loader);
  shard::for_each_frozen_part(
      state.layout(), [&](std::size_t unit, const model::ParameterSpec& parameter, Index begin, Index end) {
        loader.add(parameter, begin, end, [&](Index first, Index count) {
          return state.frozen(unit, parameter.offset + first, count);
        });
      });
  loader.run();
}

void load(const store::CheckpointReader& reader, const model::ModelConfig& model, shard::FlatState& state) {
  check_same_model(model_of(reader), reader.path(), model);
  for (const Part& part : kParts) {
    const auto name_of_parameter = [&](const model::ParameterSpec& parameter) {
      return part.prefix + parameter.name;
    };
    for (const shard::FlatUnit& unit : state.layout().units())
      for (const model::ParameterSpec& parameter : unit.spec->parameters)
        if (parameter.trained) check_tensor(reader, name_of_parameter(parameter), parameter.shape);
    const ReadElements read = [&](const model::ParameterSpec& parameter, Index first, Index count,
                                  float* out) {
      reader.read(name_of_parameter(parameter), first, count, out);
    };
    PartLoader loader(read, state);
    add_owned(part, state, loader);
    loader.run();
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
