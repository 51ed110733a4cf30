// The training step.
#include "cartan/train/engine.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "cartan/core/clock.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/model/head.hpp"
#include "train/device_batch.hpp"
#include "train/row_losses.hpp"

namespace cartan::train {
namespace {

/// The ZeRO stage that makes a difference: a plane of one rank has nothing to share.
shard::ShardPlace place_of(const Config& config, const comm::Communicator& plane) {
  shard::ShardPlace place;
  place.rank = plane.rank();
  place.size = plane.size();
  place.width = config.zero.shard > 0 ? config.zero.shard : plane.size();
  place.stage = place.width > 1 ? config.zero.stage : 0;
  if (place.stage == 0) place.width = plane.size();
  return place;
}

/// The leaves of holder `holder` of `holders`. Where gradients are reduced after each micro-batch, those of
/// one micro-batch lie next to each other over all holders, so that the owners' sums grow along the tree.
data::LeafShare share_of(const Config& config, bool is_transient, int holder, int holders) {
  const LeafRange own = leaf_range(config.batch.global, holder, holders);
  if (!is_transient) return {own.begin, own.end - own.begin, config.batch.micro};
  return {holder * config.batch.micro, own.end - own.begin, config.batch.micro, holders * config.batch.micro};
}

/// Fold plans of the micro-batches of a share.
std::vector<FoldPlan> folds_of(const CanonicalTree& tree, const data::LeafShare& share, bool is_transient) {
  if (!is_transient) return plan_folds(tree, share.first, share.first + share.count, share.micro);
  std::vector<FoldPlan> folds;
  for (Index m = 0; m < share.micro_batches(); ++m) {
    const LeafRange leaves = share.of(m);
    folds.push_back(plan_folds(tree, leaves.begin, leaves.end, share.micro).front());
  }
  return folds;
}

// Gradient slots that any rank of the plane needs: exchange memory has the same layout on all.
int slots_of_all_ranks(const Config& config, bool is_transient, int holders) {
  const CanonicalTree tree(config.batch.global);
  int slots = 1;
  for (int holder = 0; holder < holders; ++holder)
    slots = std::max(
        slots, slots_needed(folds_of(tree, share_of(config, is_transient, holder, holders), is_transient)));
  return slots;
}

/// Entries of the owners' stacks of sums.
int owned_slots(const Config& config, int holders) {
  const CanonicalTree tree(config.batch.global);
  const Index together = config.batch.micro * holders;
  std::size_t slots = 1;
  for (Index end = together; end <= config.batch.global; end += together)
    slots = std::max(slots, tree.stack_of_range(0, end).size());
  return narrow<int>(slots);
}

}  // namespace

struct Engine::State {
  State(const Config& config_, device::Device& device_, comm::Mesh& mesh_, bool overlap)
      : config(config_),
        device(device_),
        mesh(mesh_),
        plane(mesh_.data_plane()),
        place(place_of(config_, plane)),
        is_transient(place.stage >= 2),
        shard_group(place.width == plane.size() ? nullptr : mesh.neighbours(plane, place.width, "shard")),
        replicas(shard_group == nullptr ? nullptr : mesh.strided(plane, place.width, "replicas")),
        tree(config.batch.global),
        share(share_of(config, is_transient, plane.rank(), plane.size())),
        folds(folds_of(tree, share, is_transient)),
        schedule(pipeline::single_stage(narrow<Index>(folds.size()))),
        range{0, config.model.layers + 2},
        fused(config.optim.fused == "auto" && config.optim.clip <= 0 && folds.size() == 1 &&
              mesh.world().size() == 1),
        communication(overlap ? device.make_stream("communication") : nullptr),
        layout(config.model, shard::units_of_stages(config.model, {range}),
               fused          ? shard::GradientLife::fused
               : is_transient ? shard::GradientLife::transient
                              : shard::GradientLife::step,
               place),
        slots(slots_of_all_ranks(config, is_transient, plane.size())),
        flat(layout, {compute_dtype(), slots, owned_slots(config, plane.size()), config.zero.prefetch},
             device, {&plane, shard_group ? shard_group.get() : &plane, &communication_stream()}),
        stage(config.model, range, stage_options(), device),
        optimizer(config.optim, flat),
        device_batch(device, micro_shape().tokens()),
        reducer(flat, plane, replicas.get(),
                {config.batch.global, 1,
                 static_cast<Index>(config.zero.bucket_mb * (1 << 20) / static_cast<double>(sizeof(float)))},
                communication_stream()),
        host_losses(narrow<std::size_t>(micro_shape().tokens())) {
    pipeline::validate(schedule);
    // The look-up's gradient goes on top of the head's, which is in the slot already.
    tied_plan = folds.front();
    tied_plan.depth_before += 1;
    tied_plan.max_depth += 1;
    tied_plan.merges.back() += 1;
  }

  device::Stream& communication_stream() { return communication ? *communication : device.compute_stream(); }
  DType compute_dtype() const { return dtype_from_name(config.precision.compute); }
  device::SequenceShape micro_shape() const { return {config.batch.micro, config.data.seq}; }
  model::StageOptions stage_options() const {
    const int head_slots =
        model::head_slots_needed(folds, model::head_chunks(micro_shape(), config.model.vocab));
    Index recompute = 0;
    if (config.recompute.policy == "mlp")
      recompute = config.recompute.layers > 0 ? config.recompute.layers : config.model.layers;
    return {compute_dtype(), micro_shape(), true, head_slots, slots, recompute};
  }

  shard::FlatUnits units(const FoldPlan& plan) {
    return flat.units(0, &plan, fused && layout.tied_gradient() ? &tied_plan : nullptr);
  }

  /// The sequences that all ranks of the plane compute at the time of a micro-batch.
  LeafRange leaves_together(Index micro_batch) const {
    const Index together = config.batch.micro * plane.size();
    return {micro_batch * together, (micro_batch + 1) * together};
  }

  /// Adds the row losses of the last micro-batch.
  void collect_losses(const data::MicroBatch& micro) {
    const data::Batch& host = micro.batch;
    const auto length = narrow<std::size_t>(host.seq);
    device.copy_out(host_losses.data(), stage.row_losses().data,
                    narrow<std::size_t>(host.sequences) * length * sizeof(float), device.compute_stream());
    device.compute_stream().synchronize();
    for (Index s = 0; s < host.sequences; ++s) {
      const auto rows = std::span(host_losses).subspan(narrow<std::size_t>(s) * length, length);
      const bool finite =
          std::all_of(rows.begin(), rows.end(), [](float loss) { return std::isfinite(loss); });
      if (!finite) nonfinite_leaf = nonfinite_leaf.value_or(micro.first_leaf + s);
    }
    losses.add(std::span(host_losses).first(narrow<std::size_t>(host.sequences) * length), host.targets);
  }

  [[noreturn]] void throw_without_targets() const {
    throw DataError("a global batch of {} sequences has no target token", tree.leaves());
  }

  void begin_step() {
    losses = {};
    nonfinite_leaf.reset();
  }

  /// Losses and squares of all ranks. Collective.
  LossSum total(ExactSum& squares) {
    const LossSum sum = losses.total(mesh.world(), squares);
    if (sum.targets == 0) throw_without_targets();
    return sum;
  }

  /// Says which gradient is not finite, the same on every rank. Collective.
  std::string first_nonfinite_gradient() {
    const auto own = optimizer.first_nonfinite_gradient();
    comm::Communicator& world = mesh.world();
    const auto finder = world.size() - 1 - world.max(own ? world.size() - 1 - world.rank() : -1);
    if (finder >= world.size()) return "none alone, the sum overflows";
    std::array<char, 256> name{};
    if (own) own->copy(name.data(), name.size() - 1);
    world.broadcast_host(std::as_writable_bytes(std::span(name)), narrow<int>(finder));
    return name.data();
  }

  /// The first tensor of the forward pass that is not finite; activations of the latest micro-batch are
  /// looked at.
  std::string first_nonfinite_tensor(Index rows) {
    const auto finite = [&](device::ConstMatrix m) {
      return device.ops().all_finite(m, device.compute_stream());
    };
    for (std::size_t u = 0; u < layout.units().size(); ++u) {
      const shard::FlatUnit& unit = layout.units()[u];
      const LeafRange owned = unit.gradient.owned;
      for (const model::ParameterSpec& parameter : unit.spec->parameters) {
        const Index begin = std::clamp(parameter.offset, owned.begin, owned.end);
        const Index count =
            std::clamp(parameter.offset + parameter.elements(), owned.begin, owned.end) - begin;
        if (count == 0) continue;
        const device::Vector v = flat.master(u, begin, count);
        if (!finite({v.data, v.dtype, 1, v.size, v.size})) return "parameter " + parameter.name;
      }
    }
    for (Index layer = 0; layer < config.model.layers; ++layer) {
      if (!finite(stage.hidden(layer, rows)))
        return layer == 0 ? std::string("output of the embedding")
                          : fmt::format("output of layer {}", layer - 1);
    }
    return fmt::format("output of layer {} or the logits", config.model.layers - 1);
  }

  Config config;
  device::Device& device;
  comm::Mesh& mesh;
  comm::Communicator& plane;
  shard::ShardPlace place;
  bool is_transient;  ///< gradients are reduced after each micro-batch
  std::unique_ptr<comm::Communicator> shard_group, replicas;
  CanonicalTree tree;
  data::LeafShare share;
  std::vector<FoldPlan> folds;
  pipeline::Schedule schedule;
  model::StageRange range;
  bool fused;  ///< units are updated during the backward pass
  std::unique_ptr<device::Stream> communication;
  shard::FlatLayout layout;

  int slots;
  shard::FlatState flat;
  model::Stage stage;
  optim::AdamW optimizer;
  DeviceBatch device_batch;
  shard::GradientReducer reducer;
  std::vector<float> host_losses;
  FoldPlan tied_plan;
  // Of the step under way.
  RowLosses losses;
  std::optional<Index> nonfinite_leaf;
};

Engine::Engine(const Config& config, device::Device& device, comm::Mesh& mesh, bool overlap)
    : state_(std::make_unique<State>(config, device, mesh, overlap)) {}
Engine::~Engine() = default;

shard::FlatState& Engine::state() { return state_->flat; }
const shard::FlatLayout& Engine::layout() const { return state_->layout; }
const data::LeafShare& Engine::share() const { return state_->share; }

StepResult Engine::train_step(Index update, double lr, const NextBatch& next) {
  State& s = *state_;
  StepResult result;
  model::BatchView batch;
  const data::MicroBatch* micro = nullptr;
  s.begin_step();

  pipeline::execute(s.schedule, 0, [&](const pipeline::Action& action) {
    if (action.kind == pipeline::ActionKind::forward) {
      auto begin = Clock::now();
      micro = &next();
      batch = s.device_batch.upload(micro->batch);
      result.times.data += seconds_since(begin);
      begin = Clock::now();
      auto units = s.flat.units();
      s.stage.forward(batch, units);
      result.times.compute += seconds_since(begin);
      return;
    }
    const auto begin = Clock::now();
    const FoldPlan& plan = s.folds[static_cast<std::size_t>(action.micro_batch)];
    const Index targets = s.fused ? data::counted_targets(micro->batch.targets) : 0;
    if (s.fused && targets == 0) s.throw_without_targets();
    auto units = s.units(plan);
    const auto take_losses = [&] {
      s.collect_losses(*micro);
      if (s.nonfinite_leaf)
        throw NumericError(
            "step {}: the loss of sequence {} of the global batch is not finite; first tensor: {}. The last "
            "checkpoint is intact; try a lower optim.lr or a longer schedule.warmup",
            update, *s.nonfinite_leaf, s.first_nonfinite_tensor(batch.shape.tokens()));
    };
    s.stage.backward(batch, units, [&](std::size_t unit) {
      if (s.fused) {
        if (unit + 1 == s.layout.units().size()) take_losses();  // before an update spreads what is wrong
        s.optimizer.add_squares(unit);
        s.optimizer.update_unit(unit, update, lr, 1.0 / static_cast<double>(targets));
      } else {
        s.reducer.unit_ready(unit, s.leaves_together(action.micro_batch), action.reduces);
      }
    });
    if (!s.fused) take_losses();
    result.times.compute += seconds_since(begin);
  });
  if (!s.fused) {
    result.times.exposed = s.reducer.finish();
    s.flat.join_tied_gradient();
    for (std::size_t unit = 0; unit < s.layout.units().size(); ++unit) s.optimizer.add_squares(unit);
  }

  const auto begin = Clock::now();
  ExactSum squares = s.optimizer.take_squares();
  const LossSum sum = s.total(squares);
  result.loss = sum.mean();
  result.targets = sum.targets;
  const double scale = 1.0 / static_cast<double>(sum.targets);
  result.grad_norm = scale * std::sqrt(squares.value());
  if (!std::isfinite(result.grad_norm))
    throw NumericError(
        "step {}: the gradient norm is not finite; first tensor: gradient of {}. The last checkpoint is "
        "intact; try a lower optim.lr or a longer schedule.warmup",
        update, s.first_nonfinite_gradient());
  if (!s.fused) {
    for (std::size_t unit = 0; unit < s.layout.units().size(); ++unit) {
      s.optimizer.update_unit(unit, update, lr, scale * s.optimizer.clip_factor(result.grad_norm));
      s.flat.publish(unit);
    }
  }
  s.flat.forget_gathered();
  s.device.compute_stream().synchronize();
  result.times.optimizer = seconds_since(begin);
  return result;
}

LossSum Engine::evaluate(const NextBatch& next) {
  State& s = *state_;
  s.begin_step();
  auto units = s.flat.units();
  for (Index m = 0; m < s.share.micro_batches(); ++m) {
    const data::MicroBatch& micro = next();
    const model::BatchView batch = s.device_batch.upload(micro.batch);
    s.stage.forward(batch, units);
    s.stage.loss(batch, units);
    s.collect_losses(micro);
  }
  ExactSum nothing;
  return s.total(nothing);
}

device::MemoryUsage predict_memory(const Config& config, int rank) {
  const auto device = device::make_sim_device(device::device_kind_from_name(config.run.device),
                                              device::DeviceOptions{config.run.threads});
  comm::Mesh mesh = comm::Mesh::imagined(config.mesh, rank);
  const Engine engine(config, *device, mesh, false);
  return device->ledger().peak();
}

}  // namespace cartan::train
