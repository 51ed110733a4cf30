// The loop around the training step.
#include "cartan/train/trainer.hpp"

#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "cartan/core/clock.hpp"
#include "cartan/core/file.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/log.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/core/text.hpp"
#include "cartan/core/version.hpp"
#include "cartan/data/config.hpp"
#include "cartan/model/adapters.hpp"
#include "cartan/optim/schedule.hpp"
#include "cartan/pipeline/cut.hpp"
#include "cartan/pipeline/simulate.hpp"
#include "cartan/store/slab_copy.hpp"
#include "cartan/train/engine.hpp"
#include "cartan/train/export_model.hpp"
#include "cartan/train/model_source.hpp"
#include "cartan/train/run_device.hpp"
#include "cartan/train/snapshot.hpp"
#include "cartan/train/text_sources.hpp"
#include "train/metrics.hpp"
#include "train/progress.hpp"
#include "train/rate.hpp"
#include "train/signals.hpp"

namespace cartan::train {
namespace {

class Run {
 public:
  Run(const Config& config, const std::string& config_ini, comm::Session& session, comm::Mesh& mesh,
      device::Device& device)
      : config_(config),
        config_ini_(config_ini),
        session_(session),
        mesh_(mesh),
        dir_(config.run.dir),
        sources_(data::open_sources(
            with_token_files(config.data, dir_ / "data", narrow<int>(config.run.threads), mesh.world()),
            config.model.vocab)),
        device_(device),
        host_slabs_(device),
        matmul_rate_(measure_matmul_rate(device, dtype_from_name(config.precision.compute), mesh.world())),
        engine_(config, device, mesh, overlaps(session, device)) {}

  ExitCode execute();

 private:
  bool speaks() const { return session_.rank() == 0; }

  void prepare_directory();
  /// The first parameters of a training.
  void start();
  void resume();
  void banner();
  void step(data::BatchLoader& loader, MetricsFile* metrics, Progress& progress);
  LossSum evaluate();
  void check_replicas();
  void save();
  void settle_save();
  /// After the last save.
  void write_export();
  Request request();
  /// Of the data plane and the layers' collectives so far.
  double communication_seconds() const;
  std::array<std::uint64_t, 4> bytes_sent() const;  ///< by axis
  void summary();

  const Config& config_;
  const std::string& config_ini_;
  comm::Session& session_;
  comm::Mesh& mesh_;
  std::filesystem::path dir_;
  data::DataSources sources_;
  device::Device& device_;
  store::SlabCopy host_slabs_;  ///< of a device whose memory the host does not read
  double matmul_rate_;          ///< measured before the engine takes its memory
  Engine engine_;
  std::unique_ptr<store::AsyncWriter> async_;
  RunState state_;
  RunState saved_;  ///< of the newest checkpoint
  SignalWatch signals_;
  std::array<double, 6> phase_seconds_{};  ///< data, compute, pipeline, exposed, optimizer, checkpoint
};

void Run::prepare_directory() {
  comm::all_or_none(mesh_.world(), "preparing run.dir", [&] {
    if (!speaks()) return;
    std::error_code error;
    std::filesystem::create_directories(dir_ / "checkpoints", error);
    if (error)
      throw IoError("cannot create run.dir {}: {}", (dir_ / "checkpoints").string(), error.message());
  });
}

void Run::start() {
  const model::ModelConfig& model = config_.model;
  const bool keeps_base = model::has_frozen(model);
  if (model.from.empty()) {
    engine_.state().initialise(model, config_.run.seed);
    if (keeps_base) state_.base = BaseModel{"", config_.run.seed, 0};
    return;
  }
  engine_.state().clear();
  const ModelSource source(model.from, mesh_.world(), {.adapters = model.lora.from});
  comm::all_or_none(mesh_.world(), "loading the model", [&] {
    source.load(model, engine_.state(), config_.run.seed);
    if (keeps_base) state_.base = source.as_base();
  });
  engine_.state().refresh_compute();
  if (speaks()) log::info("train", "parameters of {}", source.path().string());
}

void Run::resume() {
  const auto found = store::find_newest_good(dir_, mesh_.world());
  if (!found) {
    start();
    return;
  }
  for (const std::string& rejected : found->rejected)
    if (speaks()) log::warning("store", "checkpoint passed over: {}", rejected);
  const store::CheckpointReader reader(found->path);
  comm::all_or_none(mesh_.world(), "loading the checkpoint", [&] {
    check_same_model(model_of(reader), found->path, config_.model);
    state_ = saved_ = run_state_from_json(reader.state(), found->path.string());
  });
  if (state_.base) load_base(*state_.base, config_.model.from, config_.model, engine_.state(), mesh_.world());
  comm::all_or_none(mesh_.world(), "loading the checkpoint", [&] {
    load(reader, config_.model, engine_.state());
    if (engine_.fp8_scales() != nullptr) load_fp8(reader, *engine_.fp8_scales());
  });
  engine_.state().refresh_compute();
  if (state_.loss_scale && config_.precision.scaling().enabled)
    engine_.loss_scaler().restore(*state_.loss_scale);
}

void Run::banner() {
  if (!speaks()) return;
  const auto flops = model::flops_per_token(config_.model, config_.data.seq);
  log::info("train", "cartan {} on {}, {} rank{} ({} on this node), {}", version(), session_.host(),
            session_.world_size(), session_.world_size() == 1 ? "" : "s", session_.ranks_on_node(),
            device_.description());
  log::info("train", "mesh {} | batch {} sequences of {} tokens, micro-batch {}, accumulation {}",
            comm::to_string(config_.mesh), config_.batch.global, config_.data.seq, config_.batch.micro,
            config_.batch.global / (config_.batch.micro * config_.mesh.dp));
  const model::ModelConfig& m = config_.model;
  log::info("train",
            "model {}: {} parameters, {} layers, hidden {}, heads {}/{} of {}, ffn {}, vocabulary {}{}",
            m.preset.empty() ? (m.family.empty() ? "llama" : m.family) : m.preset,
            format_count(narrow<std::uint64_t>(model::parameter_count(m))), m.layers, m.hidden, m.heads,
            m.kv_heads, m.head_dim, m.ffn, m.vocab, m.tied ? ", tied" : "");
  if (model::has_frozen(m))
    log::info("train", "trained: {} parameters{}",
              format_count(narrow<std::uint64_t>(model::trained_parameter_count(m))),
              m.lora.rank > 0 ? fmt::format(", adapters of rank {} beside {}", m.lora.rank,
                                            fmt::join(m.lora.targets, ", "))
                              : std::string());
  if (config_.mesh.pp > 1) {
    const pipeline::Schedule& schedule = engine_.schedule();
    const auto parts = pipeline::describe_ranges(
        pipeline::cut_units(m, config_.data.seq, config_.mesh.pp * schedule.chunks, config_.pipeline.cut),
        m.layers);
    for (int stage = 0; stage < config_.mesh.pp; ++stage) {
      std::string held;
      for (int chunk = 0; chunk < schedule.chunks; ++chunk)
        held += (chunk > 0 ? " and " : "") +
                parts[narrow<std::size_t>(pipeline::part_of(schedule, narrow<std::size_t>(stage), chunk))];
      log::info("train", "stage {}: {}", stage, held);
    }
  }
  log::info("train",
            "compute {}{} | {:.3g} GFLOP a token (causal), {:.3g} (full) | matrix products {:.0f} GFLOP/s",
            config_.precision.compute, config_.precision.has_fp8_products() ? ", products fp8" : "",
            flops.causal * 1e-9, flops.full * 1e-9, matmul_rate_ * 1e-9);
  const device::MemoryUsage predicted = predict_memory(config_, session_.rank());
  const device::MemoryUsage measured = device_.ledger().current();
  std::string kinds;
  for (std::size_t k = 0; k < device::kMemoryKinds; ++k)
    if (measured.bytes[k] > 0)
      kinds +=
          fmt::format("{}{} {}", kinds.empty() ? "" : ", ",
                      device::name_of(static_cast<device::MemoryKind>(k)), format_bytes(measured.bytes[k]));
  log::info("train", "memory of a rank: predicted {} ({} bytes), allocated {} ({} bytes): {}",
            format_bytes(predicted.total()), predicted.total(), format_bytes(measured.total()),
            measured.total(), kinds);
  const Index per_epoch = sources_.train->samples();
  log::info("train", "data: {} samples an epoch, this run takes {} ({:.2f} epochs)", per_epoch,
            config_.batch.global * config_.run.steps,
            static_cast<double>(config_.batch.global * config_.run.steps) / static_cast<double>(per_epoch));
  for (std::size_t i = 0; i < sources_.train->corpora().size(); ++i)
    if (const data::Packing* packing = sources_.train->packing(narrow<Index>(i)))
      log::info("train", "packed {}: {}", sources_.train->corpora()[i].dataset->prefix(),
                data::to_string(*packing, config_.data.seq));
  if (state_.step > 0)
    log::info("train", "resumed at step {} from {}", state_.step,
              store::checkpoint_path(dir_, state_.step).string());
}

LossSum Run::evaluate() {
  data::LoaderOptions options;
  options.end_step = config_.run.eval_batches;
  options.global_batch = config_.batch.global;
  options.share = engine_.share();
  data::BatchLoader loader(sources_.valid, options);
  LossSum sum;
  for (Index i = 0; i < config_.run.eval_batches; ++i) {
    const LossSum batch =
        engine_.evaluate([&](data::MicroBatch& micro) { CARTAN_ASSERT(loader.next(micro)); });
    sum.loss += batch.loss;
    sum.targets += batch.targets;
  }
  return sum;
}

void Run::save() {
  const auto begin = Clock::now();
  const std::filesystem::path path = store::checkpoint_path(dir_, state_.step);
  const Json json = to_json(state_, config_.model, config_.batch.global, config_ini_);
  auto tensors = checkpoint_tensors(config_.model, engine_.fp8_scales());
  auto slabs = checkpoint_slabs(tensors, engine_.state(), engine_.fp8_scales(), mesh_.world().rank() == 0);
  if (async_) {
    async_->save(path, json, std::move(tensors), std::move(slabs));
  } else {
    if (device_.kind() != device::DeviceKind::cpu) host_slabs_.copy(slabs, tensors);
    const store::WriteReport report =
        store::write_checkpoint(path, json, tensors, slabs, mesh_.world(), {config_.checkpoint.io_hints});
    if (speaks())
      log::info("store", "saved {} ({}, {:.2f} s, {:.2f} GB/s)", path.string(), format_bytes(report.bytes),
                report.seconds, static_cast<double>(report.bytes) * 1e-9 / report.seconds);
  }
  saved_ = state_;
  if (speaks()) store::remove_old(dir_, config_.checkpoint.keep);
  phase_seconds_[5] += seconds_since(begin);
}

void Run::write_export() {
  const std::string& dir = config_.exported.dir;
  if (dir.empty()) return;
  const auto begin = Clock::now();
  const ModelSource source(store::checkpoint_path(dir_, saved_.step), mesh_.world(), {.is_verified = true});
  model::ModelConfig model = source.config();
  if (model.max_length == 0) model.max_length = config_.data.seq;  // a folder must say one
  const store::FolderReport report =
      export_model(source, model, dir, config_.exported.merge,
                   {.dtype = dtype_from_name(config_.exported.dtype),
                    .overwrite = true,
                    .tokenizer_from = tokenizer_folder(config_.data.tokenizer, config_.model.from)},
                   mesh_.world());
  if (speaks())
    log::info("store", "exported {} ({}, {:.2f} s)", dir, format_bytes(report.bytes), seconds_since(begin));
}

void Run::settle_save() {
  if (!async_) return;
  const auto begin = Clock::now();
  const auto report = async_->wait();
  if (report && speaks())
    log::info("store", "the last save took {:.2f} s beside the training ({})", report->seconds,
              format_bytes(report->bytes));
  if (speaks()) store::remove_old(dir_, config_.checkpoint.keep);
  phase_seconds_[5] += seconds_since(begin);
}

double Run::communication_seconds() const {
  double seconds = 0;
  for (const comm::Axis axis : {comm::Axis::dp, comm::Axis::cp, comm::Axis::tp})
    seconds += mesh_.traffic(axis).seconds;
  return seconds;
}

std::array<std::uint64_t, 4> Run::bytes_sent() const {
  std::array<std::uint64_t, 4> bytes{};
  for (const comm::Axis axis : comm::kAxes)
    bytes[static_cast<std::size_t>(axis)] = mesh_.traffic(axis).bytes_sent;
  return bytes;
}

Request Run::request() {
  Request mine = signals_.caught() != 0 ? Request::stop : Request::none;
  if (speaks()) mine = std::max(mine, serve_switch_files(dir_));
  return static_cast<Request>(mesh_.world().max(static_cast<int>(mine)));
}

void Run::step(data::BatchLoader& loader, MetricsFile* metrics, Progress& progress) {
  const auto begin = Clock::now();
  const double comm_before = communication_seconds();
  const auto sent_before = bytes_sent();
  const double lr =
      optim::learning_rate(config_.schedule, config_.optim.lr, state_.updates(), config_.run.steps);
  const StepResult result = engine_.train_step(
      state_.updates() + 1, lr, [&](data::MicroBatch& micro) { CARTAN_ASSERT(loader.next(micro)); });
  state_.step += 1;
  state_.samples += config_.batch.global;
  state_.tokens += result.targets;
  if (std::isfinite(result.loss)) state_.loss = result.loss;
  if (!result.applied) ++state_.skipped;
  if (config_.precision.scaling().enabled) state_.loss_scale = engine_.loss_scaler().state();
  const double seconds = seconds_since(begin);
  phase_seconds_[0] += result.times.data;
  phase_seconds_[1] += result.times.compute;
  phase_seconds_[2] += result.times.pipeline;
  phase_seconds_[3] += result.times.exposed;
  phase_seconds_[4] += result.times.optimizer;

  std::optional<double> valid;
  const bool last = state_.step == config_.run.steps;
  if (sources_.valid && config_.run.eval_every > 0 && (state_.step % config_.run.eval_every == 0 || last))
    valid = evaluate().mean();
  if (!speaks()) return;

  const auto tokens = static_cast<double>(config_.batch.global * config_.data.seq);
  StepReport report{
      state_.step, result.loss, result.grad_norm, lr, tokens / seconds, 0, device_.ledger().peak().total(),
      seconds};
  report.mfu =
      model::flops_per_token(config_.model, config_.data.seq).causal * report.tokens_per_s / matmul_rate_;
  progress.step(report);
  Json line{{"step", state_.step},
            {"loss", result.loss},
            {"grad_norm", result.grad_norm},
            {"lr", lr},
            {"tokens", state_.tokens},
            {"tokens_per_s", report.tokens_per_s},
            {"step_s", seconds},
            {"mfu", report.mfu},
            {"comm_s", communication_seconds() - comm_before + result.times.pipeline},
            {"memory_peak", report.memory_peak}};
  const auto sent = bytes_sent();
  for (const comm::Axis axis : comm::kAxes) {
    const auto number = static_cast<std::size_t>(axis);
    line["sent_bytes"][std::string(comm::name_of(axis))] = sent[number] - sent_before[number];
  }
  if (config_.precision.scaling().enabled) {
    line["loss_scale"] = result.loss_scale;
    line["skipped"] = !result.applied;
    if (!result.applied)
      progress.say(fmt::format("step {} | a gradient overflowed at loss scale {}: no update", state_.step,
                               result.loss_scale));
  }
  if (valid) {
    line["valid_loss"] = *valid;
    progress.say(fmt::format("step {} | validation loss {:.5f} | perplexity {:.3f}", state_.step, *valid,
                             std::exp(*valid)));
  }
  metrics->append(line);
}

void Run::check_replicas() {
  if (config_.watch.replicas == 0 || state_.step % config_.watch.replicas != 0) return;
  const std::string difference = engine_.find_replica_difference();
  if (!difference.empty())
    throw NumericError(
        "step {}: replicas of a parameter are not equal: {}. Memory or a library of that rank's node is at "
        "fault; checkpoints since the last comparison (watch.replicas = {} steps) may be wrong",
        state_.step, difference, config_.watch.replicas);
}

void Run::summary() {
  std::vector<double> all(phase_seconds_.size() * static_cast<std::size_t>(session_.world_size()));
  mesh_.world().all_gather_host(std::as_bytes(std::span(phase_seconds_)),
                                std::as_writable_bytes(std::span(all)));
  if (!speaks()) return;
  static constexpr std::array names{"data",      "compute",   "waiting for stages", "exposed communication",
                                    "optimizer", "checkpoint"};
  log::info("train", "{:<22} {:>9} {:>9} {:>9}", "seconds over ranks", "min", "mean", "max");
  for (std::size_t p = 0; p < names.size(); ++p) {
    double low = all[p], high = all[p], sum = 0;
    for (std::size_t i = p; i < all.size(); i += names.size()) {
      low = std::min(low, all[i]);
      high = std::max(high, all[i]);
      sum += all[i];
    }
    log::info("train", "{:<22} {:>9.2f} {:>9.2f} {:>9.2f}", names[p], low, sum / session_.world_size(), high);
  }
  if (config_.mesh.pp == 1) return;
  double compute = 0, waiting = 0;
  for (std::size_t i = 0; i < all.size(); i += names.size()) {
    compute += all[i + 1];
    waiting += all[i + 2];
  }
  log::info("train",
            "pipeline: stages stood idle for {:.1f} % of the passes; the schedule {} alone costs {:.1f} %",
            100 * waiting / (compute + waiting), engine_.schedule().name,
            100 * pipeline::simulate(engine_.schedule(), {}).idle_share);
}

ExitCode Run::execute() {
  prepare_directory();
  resume();
  if (state_.step >= config_.run.steps) {
    if (speaks())
      log::info("train", "run.steps = {} are done already ({}); nothing to do", config_.run.steps,
                store::checkpoint_path(dir_, state_.step).string());
    return ExitCode::done;
  }
  banner();
  if (config_.checkpoint.asynchronous) {
    if (session_.thread_multiple())
      async_ = std::make_unique<store::AsyncWriter>(mesh_.duplicate(mesh_.world(), "checkpoint"), device_,
                                                    store::WriteOptions{config_.checkpoint.io_hints});
    else if (speaks())
      log::warning("store",
                   "MPI does not allow calls from several threads: checkpoints are written between steps");
  }

  data::LoaderOptions options;
  options.first_step = state_.step;
  options.end_step = config_.run.steps;
  options.global_batch = config_.batch.global;
  options.sample_offset = state_.samples - state_.step * config_.batch.global;
  options.share = engine_.share();
  data::BatchLoader loader(sources_.train, options);

  std::optional<MetricsFile> metrics;
  comm::all_or_none(mesh_.world(), "opening the files of run.dir", [&] {
    if (!speaks()) return;
    write_file_atomically(dir_ / "config.ini", config_ini_);  // not before the checkpoint was found to fit
    if (device_.kind() == device::DeviceKind::cuda)
      write_file_atomically(dir_ / "nccl.env", comm::to_text(mesh_.nccl_settings()));
    metrics.emplace(dir_, state_.step);
  });
  Progress progress(state_.step + 1, config_.run.steps, config_.run.log_every,
                    speaks() && wants_bar(config_.run.progress));
  Request wanted = Request::none;
  while (state_.step < config_.run.steps && wanted != Request::stop) {
    step(loader, metrics ? &*metrics : nullptr, progress);
    check_replicas();
    wanted = request();
    const bool due = config_.checkpoint.every > 0 && state_.step % config_.checkpoint.every == 0;
    if (due || wanted != Request::none || state_.step == config_.run.steps) save();
  }
  progress.finish();
  settle_save();
  signals_.retire();
  summary();  // which no rank passes before all have retired
  const bool finished = state_.step >= config_.run.steps;
  if (finished) write_export();
  if (speaks())
    log::info("train", "{} at step {} of {}: loss {:.5f}, {} tokens; checkpoint {}",
              finished ? "finished" : "stopped", state_.step, config_.run.steps, state_.loss, state_.tokens,
              store::checkpoint_path(dir_, saved_.step).string());
  return finished ? ExitCode::done : ExitCode::stopped_early;
}

}  // namespace

ExitCode run_training(const Config& config, const std::string& config_ini, comm::Session& session,
                      comm::Mesh& mesh, device::Device& device) {
  return Run(config, config_ini, session, mesh, device).execute();
}

}  // namespace cartan::train
