#include "train/forward.hpp"

#include <algorithm>
#include <numeric>

#include "cartan/core/narrow.hpp"

namespace cartan::train {
namespace {

// A micro-batch has about so many rows, where sequences are short.
constexpr Index kRows = 4096;
// With these a rehearsal meets all that happens.
constexpr Index kRehearsed = 4;

/// The smallest length from `length` on that every rank can have an equal part of: two chunks each with cp,
/// and of these equally many rows for each rank of tp.
Index padded(Index length, const comm::MeshShape& mesh) {
  const Index cp = mesh.context(), tp = mesh.columns();
  return round_up(length, cp > 1 ? cp * std::lcm(Index{2}, tp) : tp);
}

/// Longer sequences: the new rows go on with the last document, which no row before them sees, and have no
/// target.
void lengthen(data::Batch& batch, Index length) {
  if (batch.seq == length) return;
  data::Batch longer;
  longer.sequences = batch.sequences;
  longer.seq = length;
  const Index more = length - batch.seq;
  for (Index s = 0; s < batch.sequences; ++s) {
    const auto begin = narrow<std::ptrdiff_t>(s * batch.seq), end = begin + narrow<std::ptrdiff_t>(batch.seq);
    const auto copy = [&](const std::vector<std::int32_t>& from, std::vector<std::int32_t>& to) {
      to.insert(to.end(), from.begin() + begin, from.begin() + end);
      return from[narrow<std::size_t>(end - 1)];
    };
    copy(batch.tokens, longer.tokens);
    copy(batch.targets, longer.targets);
    const std::int32_t last = copy(batch.positions, longer.positions);
    const std::int32_t start = copy(batch.document_start, longer.document_start);
    for (Index i = 0; i < more; ++i) {
      longer.tokens.push_back(0);
      longer.targets.push_back(data::kIgnoredTarget);
      longer.positions.push_back(last + 1 + narrow<std::int32_t>(i));
      longer.document_start.push_back(start);
    }
  }
  batch = std::move(longer);
}

/// More sequences, without targets.
void fill_up(data::Batch& batch, Index sequences, Index length) {
  batch.seq = length;
  for (; batch.sequences < sequences; ++batch.sequences)
    for (Index t = 0; t < length; ++t) {
      batch.tokens.push_back(0);
      batch.targets.push_back(data::kIgnoredTarget);
      batch.positions.push_back(narrow<std::int32_t>(t));
      batch.document_start.push_back(0);
    }
}

/// What a StageRunner is made from, and it.
struct Runner {
  Runner(const Config& config_, const LoadedModel& model, shard::FlatState& flat, device::Device& device,
         comm::Mesh& mesh, StepArenas arenas_, const RunnerOptions& options)
      : config(config_),
        share(config, false, mesh.coordinate().dp),
        schedule(config.mesh.pp == 1 ? pipeline::single_stage(narrow<Index>(share.folds().size()))
                                     : pipeline::make_schedule("gpipe", config.mesh.pp,
                                                               narrow<Index>(share.folds().size()), 1)),
        arenas(std::move(arenas_)),
        runner(config, share, {model.stage}, schedule, flat, nullptr, device, mesh, arenas, options) {}

  Config config;
  BatchShare share;
  pipeline::Schedule schedule;
  StepArenas arenas;
  StageRunner runner;
};

/// One pass with batches of the right sizes.
void rehearse(Runner& of) {
  const NextBatch next = [&](data::MicroBatch& micro) {
    micro.batch = {};
    fill_up(micro.batch, of.config.batch.micro, of.config.data.seq);
  };
  of.runner.evaluate(next, {.losses = [](const data::Batch&, Index, const model::Flight&) {}});
}

}  // namespace

struct Forward::State {
  State(const LoadedModel& model, const ForwardShape& shape_, device::Device& device, comm::Mesh& mesh,
        bool overlap)
      : shape(shape_), flat(*model.state) {
    if (mesh.shape().rows > 1)
      throw ConfigError("a model is evaluated without mesh.tp-grid: use mesh.tp and mesh.cp");
    if (mesh.shape().pp > 1 && !overlap)
      throw EnvironmentError(
          "a pipeline sends and receives beside computing, which needs an MPI that allows calls from several "
          "threads (MPI_THREAD_MULTIPLE); use mesh.pp = 1 or another MPI");
    Config config;
    config.model = model.config;
    config.mesh = mesh.shape();
    config.data.seq = padded(shape.length, mesh.shape());
    config.precision.compute = name_of(flat.compute_dtype());
    const Index own = ceil_div(shape.sequences, Index{config.mesh.dp});
    config.batch.micro = std::clamp<Index>(kRows / config.data.seq, 1, own);
    const Index micro_batches = ceil_div(own, config.batch.micro);
    const auto with = [&](Index count) {
      Config some = config;
      some.batch.global = count * config.batch.micro * config.mesh.dp;
      return some;
    };
    const RunnerOptions options{overlap, false, shape.rope_length > 0 ? shape.rope_length : shape.length};

    device::DeviceOptions counting;
    counting.threads = 1;
    const auto sim = device::make_sim_device(device.kind(), counting);
    comm::Mesh imagined = comm::Mesh::imagined(mesh.shape(), comm::rank_of(mesh.shape(), mesh.coordinate()));
    const auto alone = comm::make_local_communicator("rehearsal");
    shard::FlatState imagined_flat(*model.layout, {flat.compute_dtype(), 0}, *sim, *alone);
    RunnerOptions on_sim = options;
    on_sim.overlap = false;
    Runner rehearsal(with(std::min(kRehearsed, micro_batches)), model, imagined_flat, *sim, imagined,
                     {std::make_unique<device::Arena>(), nullptr}, on_sim);
    rehearse(rehearsal);
    runner.emplace(with(micro_batches), model, flat, device, mesh,
                   StepArenas{std::make_unique<device::Arena>(
                                  allocate_arena(rehearsal.arenas.device->peak(), device, mesh)),
                              nullptr},
                   options);
  }

  ForwardShape shape;
  shard::FlatState& flat;
  std::optional<Runner> runner;
};

Forward::Forward(const LoadedModel& model, const ForwardShape& shape, device::Device& device,
                 comm::Mesh& mesh, bool overlap)
    : state_(std::make_unique<State>(model, shape, device, mesh, overlap)) {}
Forward::~Forward() = default;

void Forward::run(const Fill& fill, const RunnerHooks& hooks) {
  State& s = *state_;
  Index next = 0;
  s.runner->runner.evaluate(
      [&](data::MicroBatch& micro) {
        const LeafRange leaves = s.runner->share.leaves().of(next++);
        const Index end = std::min(leaves.end, s.shape.sequences);
        micro.first_leaf = leaves.begin;
        micro.batch.sequences = 0;
        if (leaves.begin < end) {
          fill(leaves.begin, end - leaves.begin, micro.batch);
          lengthen(micro.batch, s.runner->config.data.seq);
        } else {
          micro.batch = {};
        }
        fill_up(micro.batch, leaves.end - leaves.begin, s.runner->config.data.seq);
      },
      hooks);
}

Index Forward::padded_length() const { return state_->runner->config.data.seq; }

}  // namespace cartan::train
