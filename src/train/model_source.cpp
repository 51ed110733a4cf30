#include "cartan/train/model_source.hpp"

#include <algorithm>
#include <array>

#include "cartan/core/hash.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/log.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/model/adapters.hpp"
#include "cartan/store/model_config_file.hpp"

namespace cartan::train {
namespace {

namespace fs = std::filesystem;

/// The checkpoint, verified.
fs::path find_checkpoint(const fs::path& from, comm::Communicator& comm, bool is_verified) {
  if (!fs::is_directory(from)) {
    if (!is_verified)
      comm::all_or_none(comm, "verifying the checkpoint",
                        [&] { store::CheckpointReader(from).verify_part(comm.rank(), comm.size()); });
    return from;
  }
  const auto found = store::find_newest_good(from, comm);
  if (!found)
    throw MissingError("{}: neither a good checkpoint nor a config.json in this directory", from.string());
  if (comm.rank() == 0)
    for (const std::string& rejected : found->rejected)
      log::warning("store", "checkpoint passed over: {}", rejected);
  return found->path;
}

bool is_model(const fs::path& path) {
  return fs::is_regular_file(path) || store::is_model_folder(path) || store::is_adapter_folder(path) ||
         (fs::is_directory(path) && !store::checkpoint_steps(path).empty());
}

/// The model that something at `path` names as the one that it belongs to.
fs::path find_base(const fs::path& path, const std::string& named, const std::string& given) {
  if (!given.empty()) {
    if (!is_model(given)) throw MissingError("{}: neither a checkpoint nor a model's folder", given);
    return given;
  }
  if (named.empty())
    throw MissingError("{} does not say to which model it belongs: give --base PATH", path.string());
  for (const fs::path& candidate : {fs::path(named), path / named, path.parent_path() / named})
    if (is_model(candidate)) return candidate;
  throw MissingError("{} belongs to the model {}, which is not there: give --base PATH", path.string(),
                     named);
}

/// Adapters of adapters would be looked for without end.
void check_no_adapters(const fs::path& base, const fs::path& path) {
  if (store::is_adapter_folder(base))
    throw DataError("{} names {} as its model, which is a folder of adapters itself: give --base PATH",
                    path.string(), base.string());
}

/// `config` with these adapters.
model::ModelConfig with_adapters(model::ModelConfig config, const store::AdapterFolder& adapters) {
  config.lora = adapters.lora();
  Problems problems;
  model::check_trained(config, problems);
  if (!problems.empty())
    throw DataError("{}: the adapters do not fit the model: {}", adapters.path().string(),
                    problems.lines().front());
  adapters.check(config);
  return config;
}

}  // namespace

model::ModelConfig describe_model(const fs::path& from) {
  if (store::is_adapter_folder(from)) {
    const store::AdapterFolder adapters(from);
    const fs::path base = find_base(from, adapters.base(), "");
    check_no_adapters(base, from);
    return with_adapters(describe_model(base), adapters);
  }
  if (store::is_model_folder(from)) return store::read_model_config(from / "config.json");
  fs::path checkpoint = from;
  if (fs::is_directory(from)) {
    const std::vector<Index> steps = store::checkpoint_steps(from);
    if (steps.empty())
      throw MissingError("{}: neither a checkpoint nor a config.json in this directory", from.string());
    checkpoint = store::checkpoint_path(from, steps.back());
  }
  model::ModelConfig config = model_of(store::CheckpointReader(checkpoint));
  config.train_only.clear();  // another training may choose others
  return config;
}

ModelSource::ModelSource(const fs::path& from, comm::Communicator& comm, const SourceOptions& options) {
  open(from, comm, options);
  if (!options.adapters.empty())
    comm::all_or_none(comm, "opening the adapters", [&] { take_adapters(options.adapters); });
  for (const model::UnitSpec& unit : model::describe_units(config_))
    for (const model::ParameterSpec& parameter : unit.parameters)
      parameters_.emplace(parameter.name, parameter);
  comm::all_or_none(comm, "opening the model", [&] {
    if (!checkpoint_) return;
    Problems missing;
    for (const auto& [name, parameter] : parameters_) {
      if (checkpoint_->has(parameter_path(name)))
        check_tensor(*checkpoint_, parameter_path(name), parameter.shape);
      else if (!holds(name))
        missing.add("{} is missing", name);
    }
    if (!missing.empty())
      throw DataError("{}: {} parameters of the model are missing, as {}", path_.string(),
                      missing.lines().size(), missing.lines().front());
  });
}
ModelSource::ModelSource(ModelSource&&) noexcept = default;
ModelSource::~ModelSource() = default;

void ModelSource::open(const fs::path& from, comm::Communicator& comm, const SourceOptions& options) {
  if (store::is_adapter_folder(from)) {
    path_ = from;
    fs::path base;
    comm::all_or_none(comm, "opening the adapters", [&] {
      base = find_base(from, store::AdapterFolder(from).base(), options.base);
      check_no_adapters(base, from);
    });
    base_ = std::make_unique<ModelSource>(base, comm);
    config_ = base_->config();
    comm::all_or_none(comm, "opening the adapters", [&] { take_adapters(from); });
    return;
  }
  path_ = store::is_model_folder(from) ? from : find_checkpoint(from, comm, options.is_verified);
  comm::all_or_none(comm, "opening the model", [&] {
    if (store::is_model_folder(path_)) {
      folder_.emplace(path_);
      config_ = folder_->config();
      return;
    }
    checkpoint_.emplace(path_);
    config_ = model_of(*checkpoint_);
    run_ = run_state_from_json(checkpoint_->state(), path_.string());
  });
  if (run_.base) open_base(*run_.base, options.base, comm);
}

void ModelSource::open_base(const BaseModel& base, const std::string& given, comm::Communicator& comm) {
  if (base.path.empty()) {
    initial_seed_ = base.seed;
    return;
  }
  fs::path found;
  comm::all_or_none(comm, "opening the base model", [&] { found = find_base(path_, base.path, given); });
  base_ = std::make_unique<ModelSource>(found, comm);
  comm::all_or_none(comm, "opening the base model", [&] {
    if (base_->fingerprint() != base.fingerprint)
      throw DataError("{} belongs to another model than {}: give the one that the training began with",
                      path_.string(), found.string());
  });
}

void ModelSource::take_adapters(const fs::path& folder) {
  adapters_.emplace(folder);
  config_ = with_adapters(config_, *adapters_);
}

bool ModelSource::holds(const std::string& parameter) const {
  if (adapters_ && adapters_->has(parameter)) return true;
  if (checkpoint_ && checkpoint_->has(parameter_path(parameter))) return true;
  if (model::is_adapter(parameter)) return base_ && base_->holds(parameter);
  return folder_ || base_ || initial_seed_;
}

void ModelSource::read(const std::string& parameter, Index first, Index count, float* out) const {
  if (adapters_ && adapters_->has(parameter))
    adapters_->read(parameter, first, count, out);
  else if (checkpoint_ && checkpoint_->has(parameter_path(parameter)))
    read_parameter(*checkpoint_, parameter, first, count, out);
  else if (folder_)
    folder_->read(parameter, first, count, out);
  else if (base_)
    base_->read(parameter, first, count, out);
  else
    model::initial_values(config_, parameters_.at(parameter), initial_seed_.value(), first,
                          {out, narrow<std::size_t>(count)});
}

void ModelSource::read_merged(const std::string& parameter, Index first, Index count, float* out) const {
  read(parameter, first, count, out);
  constexpr std::string_view kWeight = ".weight";
  if (!parameter.ends_with(kWeight)) return;
  const std::string linear = parameter.substr(0, parameter.size() - kWeight.size());
  const auto found_a = parameters_.find(model::adapter_a(linear));
  if (found_a == parameters_.end()) return;
  const Index rank = config_.lora.rank, cols = found_a->second.shape[1];
  std::vector<float> a(narrow<std::size_t>(rank * cols));
  read(found_a->first, 0, rank * cols, a.data());
  const Index first_row = first / cols, end_row = ceil_div(first + count, cols);
  std::vector<float> b(narrow<std::size_t>((end_row - first_row) * rank));
  read(model::adapter_b(linear), first_row * rank, std::ssize(b), b.data());
  const double scale = config_.lora.scale();
  for (Index i = 0; i < count; ++i) {
    const Index row = (first + i) / cols, col = (first + i) % cols;
    double sum = 0;
    for (Index r = 0; r < rank; ++r)
      sum += static_cast<double>(b[narrow<std::size_t>((row - first_row) * rank + r)]) *
             static_cast<double>(a[narrow<std::size_t>(r * cols + col)]);
    out[i] = static_cast<float>(static_cast<double>(out[i]) + scale * sum);
  }
}

void ModelSource::load(const model::ModelConfig& model, shard::FlatState& state, std::uint64_t seed) const {
  model::ModelConfig here = config_, wanted = model;
  here.train_only.clear();
  wanted.train_only.clear();
  if (here.lora.rank == 0) wanted.lora = {};
  if (here.lora.rank > 0 && wanted.lora.rank == 0)
    throw ConfigError(
        "{} has adapters, and lora.rank = 0: leave lora.rank away to go on with them, or write the merged "
        "model first (cartan export --merge)",
        path_.string());
  check_same_model(here, path_, wanted);
  load_parameters(
      [&](const model::ParameterSpec& parameter, Index first, Index count, float* out) {
        if (holds(parameter.name))
          read(parameter.name, first, count, out);
        else
          model::initial_values(model, parameter, seed, first, {out, narrow<std::size_t>(count)});
      },
      state);
}

std::string ModelSource::configuration() const {
  return checkpoint_ ? checkpoint_->state().value("config", std::string()) : std::string();
}

std::string ModelSource::base_path() const {
  if (base_) return base_->path().string();
  return adapters_ && adapters_->path() != path_ ? path_.string() : std::string();
}

std::uint64_t ModelSource::fingerprint() const {
  constexpr Index kSample = 256;
  std::array<float, kSample> values{};
  std::uint64_t hash = 0;
  for (const model::UnitSpec& unit : model::describe_units(model::without_adapters(config_)))
    for (const model::ParameterSpec& parameter : unit.parameters) {
      const Index count = std::min(kSample, parameter.elements());
      read(parameter.name, parameter.elements() - count, count, values.data());
      hash = hash_bytes(std::as_bytes(std::span(values).first(narrow<std::size_t>(count))), hash);
    }
  return hash;
}

bool ModelSource::has_adapters_only() const {
  return !folder_ && (base_ || initial_seed_) &&
         std::all_of(parameters_.begin(), parameters_.end(), [&](const auto& parameter) {
           return model::is_adapter(parameter.first) || !checkpoint_ ||
                  !checkpoint_->has(parameter_path(parameter.first));
         });
}

BaseModel ModelSource::as_base() const {
  if (has_adapters_only()) return base_ ? base_->as_base() : BaseModel{"", *initial_seed_, 0};
  return {fs::absolute(path_).lexically_normal().string(), 0, fingerprint()};
}

void load_base(const BaseModel& base, const std::string& given, const model::ModelConfig& model,
               shard::FlatState& state, comm::Communicator& comm) {
  if (base.path.empty()) {
    state.initialise(model, base.seed);
    return;
  }
  const std::string from = is_model(base.path) || given.empty() ? base.path : given;
  const ModelSource source(from, comm);
  comm::all_or_none(comm, "loading the base model", [&] {
    if (source.as_base().fingerprint != base.fingerprint)
      throw DataError("{}: not the model that the training began with ({}), although it is named alike", from,
                      base.path);
    source.load(model, state);
  });
}

}  // namespace cartan::train
