#include "train/stage_runner.hpp"

#include <numeric>
#include <utility>

#include "cartan/core/clock.hpp"
#include "cartan/core/narrow.hpp"
#include "train/context_rows.hpp"
#include "train/device_batch.hpp"

namespace cartan::train {
namespace {

model::StageOptions stage_options(const Config& config, const BatchShare& share, device::SequenceShape micro,
                                  Index vocabulary, const RunnerOptions& of_runner) {
  model::StageOptions options;
  options.compute = dtype_from_name(config.precision.compute);
  options.micro = micro;
  options.rope_positions = config.data.seq;
  options.rope_length = of_runner.rope_length;
  options.rope_rounding = dtype_from_name(config.precision.buffer);
  options.training = of_runner.training;
  options.head_slots = model::head_slots_needed(share.folds(), model::head_chunks(micro, vocabulary));
  options.gradient_slots = share.slots();
  const std::string& policy = config.recompute.policy;
  options.recompute = {policy == "block" || policy == "attention", policy == "block" || policy == "mlp"};
  options.recompute_layers = recomputed_layers(config);
  if (policy == "offload") options.offload_layers = options.recompute_layers;
  return options;
}

/// Rows of sequence s of the global batch of sequences of T tokens are s T, s T + 1, ...
void number_rows(data::MicroBatch& micro) {
  const data::Batch& batch = micro.batch;
  micro.batch.row_numbers.resize(narrow<std::size_t>(batch.sequences * batch.seq));
  std::iota(micro.batch.row_numbers.begin(), micro.batch.row_numbers.end(),
            narrow<std::int32_t>(micro.first_leaf * batch.seq));
}

}  // namespace

device::Buffer allocate_arena(std::size_t bytes, device::Device& device, comm::Mesh& mesh) {
  for (const comm::Axis axis : {comm::Axis::tp, comm::Axis::cp})
    if (mesh.axis(axis).size() > 1)
      return mesh.axis(axis).allocate_exchange(device, bytes, device::MemoryKind::activations, "activations");
  return device.allocate(bytes, device::MemoryKind::activations, "activations");
}

StageRunner::StageRunner(const Config& config, const BatchShare& share,
                         const std::vector<model::StageRange>& ranges, const pipeline::Schedule& schedule,
                         shard::FlatState& flat, const model::Fp8Scales* fp8, device::Device& device,
                         comm::Mesh& mesh, const StepArenas& arenas, const RunnerOptions& of_runner)
    : share_(share),
      schedule_(schedule),
      place_(narrow<std::size_t>(mesh.coordinate().pp)),
      flat_(flat),
      device_(device),
      arena_(*arenas.device),
      tensor_(
          mesh.axis(comm::Axis::tp),
          {config.tensor.chunks, of_runner.overlap && config.tensor.chunks > 1 && config.mesh.columns() > 1
                                     ? device.make_stream("tensor")
                                     : nullptr}),
      context_(mesh.axis(comm::Axis::cp), model::context_exchange_from_name(config.context.exchange), device,
               of_runner.overlap),
      context_comm_(mesh.axis(comm::Axis::cp)),
      seq_(config.data.seq / config.mesh.context()),
      window_(config.model.window),
      drops_(config.model.lora.rank > 0 && config.model.lora.dropout > 0) {
  const device::SequenceShape micro{config.batch.micro, seq_};
  auto options =
      stage_options(config, share, micro, model::part_of(config.model, tensor_.slice()).vocab, of_runner);
  options.fp8 = fp8;
  std::size_t unit = 0;
  for (const model::StageRange& range : ranges) {
    stages_.emplace_back(config.model, range, options, tensor_, context_, device, arena_, arenas.host.get());
    first_units_.push_back(unit);
    unit += stages_.back().units();
  }
  comm::Communicator& stages = mesh.axis(comm::Axis::pp);
  if (stages.size() == 1) return;
  const int next = (stages.rank() + 1) % stages.size(),
            previous = (stages.rank() + stages.size() - 1) % stages.size();
  activations_comm_ = mesh.ring(stages, 1, "activations of " + stages.name());
  gradients_comm_ = mesh.ring(stages, -1, "gradients of " + stages.name());
  activations_ = std::make_unique<Channel>(*activations_comm_, previous, next, device, of_runner.overlap);
  gradients_ = std::make_unique<Channel>(*gradients_comm_, next, previous, device, of_runner.overlap);
}

device::SequenceShape StageRunner::own_shape(Index micro_batch) const {
  const LeafRange leaves = share_.leaves().of(micro_batch);
  return {leaves.end - leaves.begin, seq_};
}

const StageRunner::HostBatch& StageRunner::load(Index micro_batch, const NextBatch& next) {
  const auto begin = Clock::now();
  while (loaded_ <= micro_batch) {
    HostBatch& batch = batches_[loaded_++];
    if (!spares_.empty()) {
      batch.whole = std::move(spares_.back());
      spares_.pop_back();
    }
    next(batch.whole);
    data::set_window(batch.whole.batch, window_);
    if (drops_) number_rows(batch.whole);
    if (context_.is_alone()) continue;
    batch.rows = rows_of_rank(batch.whole.batch, context_.rank(), context_.size());
    if (device_.kind() != device::DeviceKind::sim) check_rows(batch.rows, context_comm_);
  }
  times_.data += seconds_since(begin);
  return batches_.at(micro_batch);
}

void StageRunner::unload(Index micro_batch) {
  const auto found = batches_.find(micro_batch);
  spares_.push_back(std::move(found->second.whole));
  batches_.erase(found);
}

StageRunner::InFlight& StageRunner::start(Key key, const NextBatch& next) {
  const HostBatch& host = load(key.micro_batch, next);
  InFlight& one = in_flight_[key];
  const data::Batch& own = host.own(!context_.is_alone());
  const data::Batch& whole = host.whole.batch;
  const std::size_t own_bytes = batch_bytes(own.sequences * own.seq, window_ > 0, drops_);
  // Starts of all rows, where they are cut.
  const std::size_t all = context_.is_alone() ? 0 : whole.document_start.size() + whole.window_start.size();
  one.integers = arena_.take(own_bytes + all * sizeof(std::int32_t));
  model::BatchView& batch = one.flight.batch;
  batch = upload(own, one.integers.data(), device_);
  batch.dropout.seed = dropout_seed_;
  if (all == 0) return one;
  auto* next_free = reinterpret_cast<std::int32_t*>(static_cast<std::byte*>(one.integers.data()) + own_bytes);
  const auto copy = [&](const std::vector<std::int32_t>& values) {
    device_.copy_in(next_free, values.data(), values.size() * sizeof(std::int32_t), device_.compute_stream());
    return std::span<const std::int32_t>(std::exchange(next_free, next_free + values.size()), values.size());
  };
  batch.all_document_start = copy(whole.document_start);
  if (window_ > 0) batch.all_window_start = copy(whole.window_start);
  return one;
}

void StageRunner::post_next(Channel* channel, const std::vector<Key>& expected, std::size_t& posted) {
  if (posted == expected.size()) return;
  const Key& key = expected[posted++];
  channel->post(stages_[narrow<std::size_t>(key.chunk)].make_boundary(own_shape(key.micro_batch)));
}

void StageRunner::run_forward(Key key, bool keeps, const pipeline::Route& route, const NextBatch& next) {
  InFlight& one = start(key, next);
  model::Stage& stage = stages_[narrow<std::size_t>(key.chunk)];
  if (route.from) {
    const auto begin = Clock::now();
    one.flight.input = activations_->take();
    times_.wait += seconds_since(begin);
    post_next(activations_.get(), expected_activations_, posted_activations_);
  }
  auto units = flat_.units(first_units_[narrow<std::size_t>(key.chunk)]);
  stage.forward(one.flight, units, keeps);
  if (route.to) activations_->send(std::move(one.flight.output));
}

void StageRunner::run_backward(const pipeline::Action& action, const pipeline::Route& route,
                               const RunnerHooks& hooks, const FoldPlan* embedding_plan) {
  const Key key{action.chunk, action.micro_batch};
  const auto chunk = narrow<std::size_t>(action.chunk);
  InFlight& one = in_flight_.at(key);
  one.flight.loss_scale = loss_scale_;
  model::Stage& stage = stages_[chunk];
  const HostBatch& host = batches_.at(key.micro_batch);
  device::ArenaMatrix d_output;
  if (route.from) {
    const auto begin = Clock::now();
    d_output = gradients_->take();
    times_.wait += seconds_since(begin);
    post_next(gradients_.get(), expected_gradients_, posted_gradients_);
  }
  const bool is_last_batch = key.micro_batch + 1 == schedule_.micro_batches;
  bool losses_taken = !stage.has_head() || action.kind == pipeline::ActionKind::backward_weight;
  auto units =
      flat_.units(first_units_[chunk], &share_.folds()[narrow<std::size_t>(key.micro_batch)], embedding_plan);
  const auto how = action.kind == pipeline::ActionKind::backward         ? model::Backward::all
                   : action.kind == pipeline::ActionKind::backward_input ? model::Backward::input
                                                                         : model::Backward::weight;
  device::ArenaMatrix d_input =
      stage.backward(one.flight, units, std::move(d_output), how, [&](std::size_t unit) {
        if (!losses_taken && hooks.losses)
          hooks.losses(host.own(!context_.is_alone()), host.whole.first_leaf, one.flight);
        losses_taken = true;
        if (hooks.unit_done) hooks.unit_done(first_units_[chunk] + unit, key.micro_batch, is_last_batch);
      });
  if (route.to) gradients_->send(std::move(d_input));
  if (how == model::Backward::input) return;
  in_flight_.erase(key);
  if (key.chunk == 0) unload(key.micro_batch);  // the last to come back
}

RunnerTimes StageRunner::train(const NextBatch& next, const RunnerHooks& hooks,
                               const FoldPlan* embedding_plan, const float* loss_scale,
                               const std::uint64_t* dropout_seed) {
  times_ = {};
  loss_scale_ = loss_scale;
  dropout_seed_ = dropout_seed;
  loaded_ = 0;
  expected_activations_.clear();
  expected_gradients_.clear();
  posted_activations_ = posted_gradients_ = 0;
  for (const pipeline::Action& action : schedule_.stages[place_]) {
    if (!pipeline::route_of(schedule_, place_, action).from) continue;
    (action.kind == pipeline::ActionKind::forward ? expected_activations_ : expected_gradients_)
        .push_back({action.chunk, action.micro_batch});
  }
  post_next(activations_.get(), expected_activations_, posted_activations_);
  post_next(gradients_.get(), expected_gradients_, posted_gradients_);
  pipeline::execute(schedule_, place_, [&](const pipeline::Action& action) {
    const auto begin = Clock::now();
    const double data = times_.data;
    const device::Range range(
        device_, fmt::format("{} micro-batch {} chunk {}", pipeline::name_of(action.kind), action.micro_batch,
                             action.chunk));
    const pipeline::Route route = pipeline::route_of(schedule_, place_, action);
    if (action.kind == pipeline::ActionKind::forward)
      run_forward({action.chunk, action.micro_batch}, true, route, next);
    else
      run_backward(action, route, hooks, embedding_plan);
    times_.compute += seconds_since(begin) - (times_.data - data);
  });
  for (Channel* channel : {activations_.get(), gradients_.get()})
    if (channel != nullptr) channel->finish_send();
  CARTAN_ASSERT(in_flight_.empty() && batches_.empty());
  return times_;
}

void StageRunner::evaluate(const NextBatch& next, const RunnerHooks& hooks) {
  times_ = {};
  dropout_seed_ = nullptr;
  loaded_ = 0;
  expected_activations_.clear();
  posted_activations_ = 0;
  const auto route_of = [&](int chunk, Index m) {
    return pipeline::route_of(schedule_, place_, {pipeline::ActionKind::forward, m, chunk, false});
  };
  for (Index m = 0; m < schedule_.micro_batches; ++m)
    for (int chunk = 0; chunk < schedule_.chunks; ++chunk)
      if (route_of(chunk, m).from) expected_activations_.push_back({chunk, m});
  post_next(activations_.get(), expected_activations_, posted_activations_);
  for (Index m = 0; m < schedule_.micro_batches; ++m) {
    for (int chunk = 0; chunk < schedule_.chunks; ++chunk) {
      run_forward({chunk, m}, false, route_of(chunk, m), next);
      InFlight& one = in_flight_.at({chunk, m});
      model::Stage& stage = stages_[narrow<std::size_t>(chunk)];
      if (stage.has_head()) {
        auto units = flat_.units(first_units_[narrow<std::size_t>(chunk)]);
        stage.loss(one.flight, units);
        const HostBatch& host = batches_.at(m);
        hooks.losses(host.own(!context_.is_alone()), host.whole.first_leaf, one.flight);
        if (hooks.head) hooks.head(stage, one.flight, units);
      }
      in_flight_.erase({chunk, m});
    }
    unload(m);
  }
  if (activations_) activations_->finish_send();
}

}  // namespace cartan::train
