// The training step.
#include "cartan/train/engine.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "cartan/core/clock.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/core/random.hpp"
#include "cartan/model/adapters.hpp"
#include "cartan/model/head.hpp"
#include "cartan/pipeline/cut.hpp"
#include "cartan/shard/replica_check.hpp"
#include "cartan/shard/shared_gradients.hpp"
#include "train/batch_share.hpp"
#include "train/stage_runner.hpp"
#include "train/step_losses.hpp"

namespace cartan::train {
namespace {

pipeline::Schedule make_schedule(const Config& config, Index micro_batches) {
  if (config.mesh.pp == 1) return pipeline::single_stage(micro_batches);
  return pipeline::make_schedule(config.pipeline.schedule, config.mesh.pp, micro_batches,
                                 config.pipeline.chunks);
}

/// The parts of the model that place `place` of the pipeline holds, by chunk.
std::vector<model::StageRange> ranges_of(const Config& config, const pipeline::Schedule& schedule,
                                         int place) {
  if (config.mesh.pp == 1) return {{0, config.model.layers + 2}};
  const auto parts = pipeline::cut_units(config.model, config.data.seq, config.mesh.pp * schedule.chunks,
                                         config.pipeline.cut);
  std::vector<model::StageRange> ranges;
  ranges.reserve(narrow<std::size_t>(schedule.chunks));
  for (int chunk = 0; chunk < schedule.chunks; ++chunk)
    ranges.push_back(
        parts[narrow<std::size_t>(pipeline::part_of(schedule, narrow<std::size_t>(place), chunk))]);
  return ranges;
}

bool updates_are_fused(const Config& config, Index micro_batches) {
  return config.optim.fused == "auto" && config.optim.clip <= 0 && micro_batches == 1 &&
         config.mesh.size() == 1 && !config.precision.scaling().enabled && !model::has_frozen(config.model);
}

/// Rows of a step whose losses a rank computes.
Index loss_rows(const Config& config, const std::vector<model::StageRange>& ranges, Index micro_batches) {
  const bool has_head = ranges.back().end == config.model.layers + 2;
  return has_head ? micro_batches * config.batch.micro * (config.data.seq / config.mesh.context()) : 0;
}

std::unique_ptr<model::Fp8Scales> make_fp8_scales(const Config& config, device::Device& device) {
  const PrecisionConfig& precision = config.precision;
  if (!precision.has_fp8_products()) return nullptr;
  if (!device.multiplies_fp8())
    throw EnvironmentError(
        "precision.products = fp8 needs a GPU of compute capability 8.9 or newer (Ada, Hopper, Blackwell); "
        "this is {}; use precision.products = compute",
        device.description());
  return std::make_unique<model::Fp8Scales>(
      config.model.layers, model::Fp8Options{precision.fp8_history, precision.fp8_margin}, device);
}

/// The loss scale is that of a mean over tokens, as elsewhere; the loss here is a sum. A power of two near
/// the number of tokens keeps the scaling exact.
double loss_share(const Config& config) {
  const auto tokens = static_cast<double>(config.batch.global * config.data.seq);
  return 1 / std::exp2(std::floor(std::log2(tokens)));
}

shard::GradientLife gradient_life(bool fused, const shard::ShardPlace& place) {
  if (fused) return shard::GradientLife::fused;
  return place.stage >= 2 ? shard::GradientLife::transient : shard::GradientLife::step;
}

}  // namespace

struct Engine::State {
  State(const Config& config_, device::Device& device_, comm::Mesh& mesh_, bool overlap, StepArenas arenas_)
      : config(config_),
        device(device_),
        mesh(mesh_),
        plane(mesh_.data_plane()),
        place(shard_place(config_, plane.rank())),
        share(config_, place.stage >= 2, mesh_.coordinate().dp),
        schedule(make_schedule(config_, narrow<Index>(share.folds().size()))),
        fused(updates_are_fused(config_, schedule.micro_batches)),
        shard_group(place.width == plane.size() ? nullptr : mesh.neighbours(plane, place.width, "shard")),
        replicas(shard_group == nullptr ? nullptr : mesh.strided(plane, place.width, "replicas")),
        communication(overlap ? device.make_stream("communication") : nullptr),
        arenas(std::move(arenas_)),
        ranges(ranges_of(config, schedule, mesh.coordinate().pp)),
        layout(config.model, shard::units_of_stages(config.model, ranges), gradient_life(fused, place), place,
               {mesh.coordinate().tp, mesh.shape().columns()}),
        flat(layout,
             {dtype_from_name(config.precision.compute), share.slots(), share.owned_slots(),
              config.zero.prefetch, config.zero.offload != "none", config.zero.offload == "all"},
             device, {&plane, shard_group ? shard_group.get() : &plane, &communication_stream()}),
        fp8(make_fp8_scales(config, device)),
        runner(config, share, ranges, schedule, flat, fp8.get(), device, mesh, arenas, {.overlap = overlap}),
        optimizer(config.optim, flat),
        scaler(config.precision.scaling(), loss_share(config), device),
        reducer(flat, plane, replicas.get(),
                {config.batch.global, config.mesh.context(),
                 static_cast<Index>(config.zero.bucket_mb * (1 << 20) / static_cast<double>(sizeof(float))),
                 dtype_from_name(config.precision.reduce), config.hook, config.precision.sum == "nccl"},
                communication_stream()),
        shared(flat, mesh, config.model.tied),
        replica_check(flat, plane, replicas.get(), shared),
        dropout_seed(
            config.model.lora.rank > 0 && config.model.lora.dropout > 0
                ? device.allocate(sizeof(std::uint64_t), device::MemoryKind::workspace, "seed of dropout")
                : device::Buffer()),
        losses(device, loss_rows(config, ranges, schedule.micro_batches)) {
    pipeline::validate(schedule);
    // The look-up's gradient goes on top of the head's, which is in the slot already.
    tied_plan = share.folds().front();
    tied_plan.depth_before += 1;
    tied_plan.max_depth += 1;
    tied_plan.merges.back() += 1;
  }

  device::Stream& communication_stream() { return communication ? *communication : device.compute_stream(); }
  bool scales_loss() const { return config.precision.scaling().enabled; }
  /// Null without dropout.
  const std::uint64_t* seed() const { return dropout_seed.as<std::uint64_t>(); }
  void set_dropout_seed(Index update) {
    if (dropout_seed.data() == nullptr) return;
    host_seed = RandomStream(config.run.seed, "dropout").bits(narrow<std::uint64_t>(update));
    device.copy_in(dropout_seed.data(), &host_seed, sizeof host_seed, device.compute_stream());
  }
  const FoldPlan* embedding_plan() const { return fused && layout.tied_gradient() ? &tied_plan : nullptr; }

  [[noreturn]] void throw_without_targets() const {
    throw DataError("a global batch of {} sequences has no target token", config.batch.global);
  }

  /// Of the step, over all ranks. Ranks of tensor parallelism have the same rows. Collective.
  Index total_targets() {
    std::int64_t targets = mesh.coordinate().tp == 0 ? losses.targets() : 0;
    mesh.world().sum({&targets, 1});
    if (targets == 0) throw_without_targets();
    return targets;
  }
  /// Of all ranks. Collective.
  double total_loss() {
    ExactSum sum;
    if (mesh.coordinate().tp == 0) sum = losses.sum();
    comm::sum_exactly(mesh.world(), {&sum, 1});
    return sum.value();
  }

  /// The squares of all ranks are added up without the host. Every gradient element counts on one rank.
  void sum_squares() {
    const std::span<std::int64_t> words = optimizer.sum_squares();
    device::Stream& stream = communication_stream();
    stream.wait(device.compute_stream().record());
    for (comm::Communicator* const group : {&plane, &mesh.axis(comm::Axis::tp), &mesh.axis(comm::Axis::pp)})
      if (group->size() > 1) group->sum_integers(words, stream);
    device.compute_stream().wait(stream.record());
  }

  [[noreturn]] void throw_nonfinite_loss(Index update, Index leaf, const std::string& tensor) const {
    throw NumericError(
        "step {}: the loss of sequence {} of the global batch is not finite; first tensor: {}. The last "
        "checkpoint is intact; try a lower optim.lr or a longer schedule.warmup",
        update, leaf, tensor);
  }

  /// The losses of the step are not finite. Where all parameters are, the same micro-batches once more show
  /// where it begins. Collective.
  [[noreturn]] void diagnose_loss(Index update) {
    const Index leaf = -mesh.world().max(-losses.nonfinite_leaf().value_or(config.batch.global));
    if (const auto parameter = agree(first_nonfinite_parameter()))
      throw_nonfinite_loss(update, leaf, *parameter);
    std::optional<std::string> output;
    std::size_t next = 0;
    RunnerHooks hooks;
    hooks.losses = [&](const data::Batch& rows, Index first_leaf, const model::Flight& flight) {
      if (first_leaf <= leaf && leaf < first_leaf + rows.sequences) output = first_nonfinite_output(flight);
    };
    runner.train([&](data::MicroBatch& batch) { batch = kept[next++]; }, hooks, embedding_plan(), nullptr,
                 seed());
    throw_nonfinite_loss(update, leaf, agree(output).value_or("none"));
  }

  [[noreturn]] void throw_nonfinite_gradient(Index update) {
    throw NumericError(
        "step {}: the gradient norm is not finite; first tensor: gradient of {}. The last checkpoint is "
        "intact; try a lower optim.lr or a longer schedule.warmup",
        update, agree(optimizer.first_nonfinite_gradient()).value_or("none alone, the sum overflows"));
  }

  /// What the lowest rank found that found something, for all ranks. Collective.
  std::optional<std::string> agree(const std::optional<std::string>& own) {
    comm::Communicator& world = mesh.world();
    const auto finder = world.size() - 1 - world.max(own ? world.size() - 1 - world.rank() : -1);
    if (finder >= world.size()) return std::nullopt;
    std::array<char, 256> name{};
    if (own) own->copy(name.data(), name.size() - 1);
    world.broadcast_host(std::as_writable_bytes(std::span(name)), narrow<int>(finder));
    return name.data();
  }

  bool is_finite(device::ConstMatrix m) { return device.ops().all_finite(m, device.compute_stream()); }

  /// Of what this rank holds.
  std::optional<std::string> first_nonfinite_parameter() {
    optimizer.settle();
    const auto found = shard::first_nonfinite(
        flat, [&](std::size_t unit, Index begin, Index count) { return flat.master(unit, begin, count); });
    return found ? std::optional("parameter " + *found) : std::nullopt;
  }
  /// The first output of this rank's part of a forward pass that is not finite.
  std::string first_nonfinite_output(const model::Flight& flight) {
    // The head's stage may begin with a copy of the embedding.
    const Index first = std::max<Index>(1, ranges.back().first);
    for (std::size_t i = 0; i < flight.blocks.size(); ++i) {
      const Index layer = first - 1 + narrow<Index>(i);
      if (!is_finite(flight.blocks[i].x))
        return layer == 0 ? std::string("output of the embedding")
                          : fmt::format("output of layer {}", layer - 1);
    }
    return fmt::format("output of layer {} or the logits", config.model.layers - 1);
  }

  /// One step's use of the arena, with batches of the right sizes.
  void rehearse() {
    Index m = 0;
    const NextBatch fake = [&](data::MicroBatch& micro) {
      const LeafRange leaves = share.leaves().of(m++);
      data::Batch& batch = micro.batch;
      batch.sequences = leaves.end - leaves.begin;
      batch.seq = config.data.seq;
      for (auto* array : {&batch.tokens, &batch.targets, &batch.document_start, &batch.positions})
        array->assign(narrow<std::size_t>(batch.sequences * batch.seq), 0);
    };
    runner.train(fake, {}, embedding_plan(), scaler.of_loss(), seed());
    m = 0;
    runner.evaluate(fake, {.losses = [](const data::Batch&, Index, const model::Flight&) {}});
  }

  Config config;
  device::Device& device;
  comm::Mesh& mesh;
  comm::Communicator& plane;
  shard::ShardPlace place;
  BatchShare share;
  pipeline::Schedule schedule;
  bool fused;  ///< units are updated during the backward pass
  std::unique_ptr<comm::Communicator> shard_group, replicas;
  std::unique_ptr<device::Stream> communication;
  StepArenas arenas;
  std::vector<model::StageRange> ranges;
  shard::FlatLayout layout;
  shard::FlatState flat;
  std::unique_ptr<model::Fp8Scales> fp8;
  StageRunner runner;
  optim::AdamW optimizer;
  optim::LossScaler scaler;
  shard::GradientReducer reducer;
  shard::SharedGradients shared;
  shard::ReplicaCheck replica_check;
  // Of the step under way.
  device::Buffer dropout_seed;
  std::uint64_t host_seed = 0;
  StepLosses losses;
  std::vector<data::MicroBatch> kept;  ///< for diagnosis
  FoldPlan tied_plan;
  comm::AbandonOnFailure abandon{mesh};  // the last: the others wait for the device when they go
};

StepArenas Engine::plan_arenas(const Config& config, device::Device& device, comm::Mesh& mesh) {
  const auto sim = device::make_sim_device(device::device_kind_from_name(config.run.device),
                                           device::DeviceOptions{config.run.threads});
  comm::Mesh imagined = comm::Mesh::imagined(config.mesh, comm::rank_of(config.mesh, mesh.coordinate()));
  State rehearsal(config, *sim, imagined, false,
                  {std::make_unique<device::Arena>(), std::make_unique<device::Arena>()});
  rehearsal.rehearse();
  return {std::make_unique<device::Arena>(mesh.allocate_exchange(
              device, rehearsal.arenas.device->peak(), device::MemoryKind::activations, "activations")),
          std::make_unique<device::Arena>(
              device.allocate_offloaded(rehearsal.arenas.host->peak(), "activations that wait"))};
}

Engine::Engine(const Config& config, device::Device& device, comm::Mesh& mesh, bool overlap) {
  if (config.mesh.pp > 1 && !overlap && device.kind() != device::DeviceKind::sim)
    throw EnvironmentError(
        "a pipeline sends and receives beside computing, which needs an MPI that allows calls from several "
        "threads (MPI_THREAD_MULTIPLE); use mesh.pp = 1 or another MPI");
  state_ = std::make_unique<State>(config, device, mesh, overlap, plan_arenas(config, device, mesh));
}
Engine::~Engine() = default;

shard::FlatState& Engine::state() {
  state_->optimizer.settle();
  return state_->flat;
}
const shard::FlatLayout& Engine::layout() const { return state_->layout; }
const data::LeafShare& Engine::share() const { return state_->share.leaves(); }
const pipeline::Schedule& Engine::schedule() const { return state_->schedule; }
optim::LossScaler& Engine::loss_scaler() { return state_->scaler; }
model::Fp8Scales* Engine::fp8_scales() { return state_->fp8.get(); }

StepResult Engine::train_step(Index update, double lr, const NextBatch& next) {
  State& s = *state_;
  StepResult result;
  s.losses.clear();
  s.reducer.begin_step(update);
  s.optimizer.begin_step();
  if (s.fp8) s.fp8->begin_step();
  s.set_dropout_seed(update);
  double fused_scale = 0;
  RunnerHooks hooks;
  hooks.losses = [&](const data::Batch& rows, Index first_leaf, const model::Flight& flight) {
    s.losses.collect(rows, first_leaf, flight);
    if (!s.fused) return;
    // Units are updated from here on, and this is the only micro-batch.
    s.losses.read();
    if (const auto leaf = s.losses.nonfinite_leaf())
      s.throw_nonfinite_loss(update, *leaf,
                             s.first_nonfinite_parameter().value_or(s.first_nonfinite_output(flight)));
    fused_scale = 1.0 / static_cast<double>(s.total_targets());
  };
  hooks.unit_done = [&](std::size_t unit, Index micro_batch, bool last) {
    if (s.fused) {
      s.optimizer.add_squares(unit);
      s.optimizer.update_unit_now(unit, update, lr, fused_scale);
    } else {
      s.reducer.unit_ready(unit, s.share.together(micro_batch), last);
    }
  };
  // Elsewhere the loss is looked at as it comes, or may overflow.
  const bool keeps = !s.fused && !s.scales_loss();
  s.kept.resize(narrow<std::size_t>(s.schedule.micro_batches));
  std::size_t micro_batches = 0;
  const NextBatch keeping = [&](data::MicroBatch& batch) {
    next(batch);
    s.kept[micro_batches++] = batch;
  };
  const RunnerTimes times =
      s.runner.train(keeps ? keeping : next, hooks, s.embedding_plan(), s.scaler.of_loss(), s.seed());
  result.times.data = times.data;
  result.times.compute = times.compute - times.wait;
  result.times.pipeline = times.wait;
  if (!s.fused) {
    const device::Range range(s.device, "reduction");
    result.times.exposed = s.reducer.finish();
    s.shared.sum();
    for (std::size_t unit = 0; unit < s.layout.units().size(); ++unit) s.optimizer.add_squares(unit);
  }

  const auto begin = Clock::now();
  const device::Range range(s.device, "optimizer");
  // The device goes on to the end of the step by itself; the host looks at what came out.
  result.targets = s.total_targets();
  s.sum_squares();
  s.scaler.update(s.optimizer.decide(1.0 / static_cast<double>(result.targets), s.scaler.of_loss()));
  if (!s.fused) {
    for (std::size_t unit = 0; unit < s.layout.units().size(); ++unit) {
      s.optimizer.update_unit(unit, update, lr);
      s.flat.publish(unit);
    }
  }
  s.flat.forget_gathered();
  result.grad_norm = s.optimizer.decision().norm;
  if (!s.fused) s.losses.read();
  result.loss = LossSum{s.total_loss(), result.targets}.mean();
  if (s.fp8) s.fp8->end_step(s.mesh.world());
  result.applied = std::isfinite(result.grad_norm);
  if (s.scales_loss()) {
    result.loss_scale = s.scaler.finish_step(!result.applied);
  } else if (!std::isfinite(result.loss) || !result.applied) {
    s.mesh.poll();  // a connection that broke leaves garbage behind
    if (!std::isfinite(result.loss)) s.diagnose_loss(update);
    s.throw_nonfinite_gradient(update);
  }
  result.times.optimizer = seconds_since(begin);
  return result;
}

std::string Engine::find_replica_difference() {
  state_->optimizer.settle();
  return state_->replica_check.find(state_->mesh.world());
}

LossSum Engine::evaluate(const NextBatch& next) {
  State& s = *state_;
  s.losses.clear();
  s.runner.evaluate(next,
                    {.losses = [&](const data::Batch& rows, Index first_leaf, const model::Flight& flight) {
                      s.losses.collect(rows, first_leaf, flight);
                    }});
  s.losses.read();
  const Index targets = s.total_targets();
  return {s.total_loss(), targets};
}

device::MemoryUsage predict_memory(const Config& config, int rank) {
  const auto device = device::make_sim_device(device::device_kind_from_name(config.run.device),
                                              device::DeviceOptions{config.run.threads});
  comm::Mesh mesh = comm::Mesh::imagined(config.mesh, rank);
  const Engine engine(config, *device, mesh, false);
  return device->ledger().peak();
}

}  // namespace cartan::train
