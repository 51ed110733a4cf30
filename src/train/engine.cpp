// The training step.
#include "cartan/train/engine.hpp"

#include <algorithm>
#include <cmath>

#include "cartan/core/clock.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/model/head.hpp"
#include "train/device_batch.hpp"
#include "train/row_losses.hpp"

namespace cartan::train {
namespace {

// Gradient slots that any rank of the plane needs: exchange memory has the same layout on all.
int slots_of_all_ranks(const CanonicalTree& tree, Index micro, int ranks) {
  int slots = 1;
  for (int rank = 0; rank < ranks; ++rank) {
    const LeafRange range = leaf_range(tree.leaves(), rank, ranks);
    slots = std::max(slots, slots_needed(plan_folds(tree, range.begin, range.end, micro)));
  }
  return slots;
}

}  // namespace

struct Engine::State {
  State(const Config& config_, device::Device& device_, comm::Communicator& plane_, bool overlap)
      : config(config_),
        device(device_),
        plane(plane_),
        tree(config.batch.global),
        leaves(leaf_range(config.batch.global, plane.rank(), plane.size())),
        folds(plan_folds(tree, leaves.begin, leaves.end, config.batch.micro)),
        schedule(pipeline::single_stage(narrow<Index>(folds.size()))),
        range{0, config.model.layers + 2},
        fused(config.optim.fused == "auto" && config.optim.clip <= 0 && folds.size() == 1 &&
              plane.size() == 1),
        layout(config.model, range, fused ? shard::GradientLife::transient : shard::GradientLife::step),
        slots(slots_of_all_ranks(tree, config.batch.micro, plane.size())),
        flat(layout, {compute_dtype(), slots}, device, plane),
        stage(config.model, range, stage_options(), device),
        optimizer(config.optim, flat, plane),
        device_batch(device, micro_shape().tokens()),
        communication(overlap ? device.make_stream("reduction") : nullptr),
        reducer(flat, plane, tree,
                static_cast<Index>(config.zero.bucket_mb * (1 << 20) / static_cast<double>(sizeof(float))),
                communication ? *communication : device.compute_stream()),
        host_losses(narrow<std::size_t>(micro_shape().tokens())) {
    pipeline::validate(schedule);
    // The look-up's gradient goes on top of the head's, which is in the slot already.
    tied_plan = folds.front();
    tied_plan.depth_before += 1;
    tied_plan.max_depth += 1;
    tied_plan.merges.back() += 1;
  }

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
    return flat.units(&plan, fused && layout.tied_gradient_begin() ? &tied_plan : nullptr);
  }

  /// Adds the row losses of the last micro-batch, sequence by sequence.
  void collect_losses(const data::MicroBatch& micro, CanonicalSum<double>& losses,
                      CanonicalSum<double>& counts) {
    const data::Batch& host = micro.batch;
    const auto length = narrow<std::size_t>(host.seq);
    device.copy_out(host_losses.data(), stage.row_losses().data,
                    narrow<std::size_t>(host.sequences) * length * sizeof(float), device.compute_stream());
    device.compute_stream().synchronize();
    for (Index s = 0; s < host.sequences; ++s) {
      const std::size_t begin = narrow<std::size_t>(s) * length;
      const LossSum sum = sum_rows(std::span(host_losses).subspan(begin, length),
                                   std::span(host.targets).subspan(begin, length));
      losses.push_leaf(micro.first_leaf + s, sum.loss);
      counts.push_leaf(micro.first_leaf + s, static_cast<double>(sum.targets));
      if (!std::isfinite(sum.loss)) nonfinite_leaf = nonfinite_leaf.value_or(micro.first_leaf + s);
    }
  }

  [[noreturn]] void throw_without_targets() const {
    throw DataError("a global batch of {} sequences has no target token", tree.leaves());
  }

  LossSum total(const CanonicalSum<double>& losses, const CanonicalSum<double>& counts) {
    LossSum sum;
    sum.loss = canonical_sum(plane, tree, losses.nodes(), losses.values());
    sum.targets = static_cast<Index>(canonical_sum(plane, tree, counts.nodes(), counts.values()));
    if (sum.targets == 0) throw_without_targets();
    return sum;
  }

  /// The first tensor of the forward pass that is not finite; activations of the latest micro-batch are
  /// looked at.
  std::string first_nonfinite_tensor(Index rows) {
    const auto finite = [&](device::ConstMatrix m) {
      return device.ops().all_finite(m, device.compute_stream());
    };
    for (const shard::FlatUnit& unit : layout.units()) {
      for (const model::ParameterSpec& parameter : unit.spec->parameters) {
        const device::Vector v = flat.master(unit.parameter_begin + parameter.offset, parameter.elements());
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
  comm::Communicator& plane;
  CanonicalTree tree;
  LeafRange leaves;
  std::vector<FoldPlan> folds;
  pipeline::Schedule schedule;
  model::StageRange range;
  bool fused;  ///< units are updated during the backward pass
  shard::FlatLayout layout;

  int slots;
  shard::FlatState flat;
  model::Stage stage;
  optim::AdamW optimizer;
  DeviceBatch device_batch;
  std::unique_ptr<device::Stream> communication;
  shard::GradientReducer reducer;
  std::vector<float> host_losses;
  std::optional<Index> nonfinite_leaf;
  FoldPlan tied_plan;
};

Engine::Engine(const Config& config, device::Device& device, comm::Communicator& plane, bool overlap)
    : state_(std::make_unique<State>(config, device, plane, overlap)) {}
Engine::~Engine() = default;

shard::FlatState& Engine::state() { return state_->flat; }
const shard::FlatLayout& Engine::layout() const { return state_->layout; }
LeafRange Engine::leaves() const { return state_->leaves; }

StepResult Engine::train_step(Index update, double lr, const NextBatch& next) {
  State& s = *state_;
  StepResult result;
  CanonicalSum<double> losses(s.tree.leaves()), counts(s.tree.leaves());
  model::BatchView batch;
  const data::MicroBatch* micro = nullptr;
  s.nonfinite_leaf.reset();

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
      s.collect_losses(*micro, losses, counts);
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
      } else if (action.reduces) {
        s.reducer.unit_ready(unit);
      }
    });
    if (!s.fused) take_losses();
    result.times.compute += seconds_since(begin);
  });
  if (!s.fused) {
    result.times.exposed = s.reducer.finish();
    s.flat.join_tied_gradient();
  }

  const auto begin = Clock::now();
  const LossSum sum = s.total(losses, counts);
  result.loss = sum.mean();
  result.targets = sum.targets;
  const double scale = 1.0 / static_cast<double>(sum.targets);
  result.grad_norm = s.fused ? s.optimizer.norm_of_squares(scale) : s.optimizer.gradient_norm(scale);
  if (!std::isfinite(result.grad_norm))
    throw NumericError(
        "step {}: the gradient norm is not finite; first tensor: gradient of {}. The last checkpoint is "
        "intact; try a lower optim.lr or a longer schedule.warmup",
        update, s.optimizer.first_nonfinite_gradient().value_or("none alone, the sum overflows"));
  if (!s.fused) s.optimizer.update(update, lr, scale * s.optimizer.clip_factor(result.grad_norm));
  s.device.compute_stream().synchronize();
  result.times.optimizer = seconds_since(begin);
  return result;
}

LossSum Engine::evaluate(const NextBatch& next) {
  State& s = *state_;
  CanonicalSum<double> losses(s.tree.leaves()), counts(s.tree.leaves());
  auto units = s.flat.units();
  for (std::size_t i = 0; i < s.folds.size(); ++i) {
    const data::MicroBatch& micro = next();
    const model::BatchView batch = s.device_batch.upload(micro.batch);
    s.stage.forward(batch, units);
    s.stage.loss(batch, units);
    s.collect_losses(micro, losses, counts);
  }
  return s.total(losses, counts);
}

device::MemoryUsage predict_memory(const Config& config, int rank) {
  const auto device = device::make_sim_device(device::device_kind_from_name(config.run.device),
                                              device::DeviceOptions{config.run.threads});
  const auto plane = comm::make_local_communicator("dp", rank, config.mesh.dp);
  const Engine engine(config, *device, *plane, false);
  return device->ledger().peak();
}

}  // namespace cartan::train
