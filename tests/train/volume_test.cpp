// What a step sends on each axis is what docs/parallelism.md says.
#include <array>

#include "support/test_device.hpp"
#include "train/toy_run.hpp"

namespace cartan::train {
namespace {

/// Numbers that divide, except where they need not.
Config small_config() {
  Config config;
  config.model.hidden = 64;
  config.model.layers = 6;
  config.model.heads = 8;
  config.model.kv_heads = 4;
  config.model.head_dim = 16;
  config.model.ffn = 97;
  config.model.vocab = 96;
  config.model.qk_norm = true;
  config.data.seq = 32;
  config.batch.global = 8;
  config.batch.micro = 1;
  config.run.threads = 1;
  return config;
}

using Sent = std::array<std::int64_t, 4>;  ///< by axis

/// Bytes that all ranks together sent in a step; the second one, which finds nothing gathered by a former.
Sent sent_in_a_step(Config config, comm::Mesh& mesh) {
  config.mesh = mesh.shape();
  const auto device = cartan::testing::make_test_device(1);
  Engine engine(config, *device, mesh, testing::session().thread_multiple());
  engine.state().initialise(config.model, 7);
  Sent sent{};
  for (int step = 1; step <= 2; ++step) {
    for (const comm::Axis axis : comm::kAxes)
      sent[static_cast<std::size_t>(axis)] = -narrow<std::int64_t>(mesh.traffic(axis).bytes_sent);
    Index next = 0;
    engine.train_step(step, 1e-3, [&](data::MicroBatch& batch) {
      const LeafRange leaves = engine.share().of(next++);
      batch = make_batch(step, leaves.begin, leaves.end - leaves.begin, config.data.seq);
    });
    for (const comm::Axis axis : comm::kAxes)
      sent[static_cast<std::size_t>(axis)] += narrow<std::int64_t>(mesh.traffic(axis).bytes_sent);
  }
  mesh.world().sum(sent);
  return sent;
}

/// The quantities of the formulas, for one group of an axis and bytes of one element of `compute`.
struct Sizes {
  Sizes(const Config& config, const comm::MeshShape& mesh)
      : layers(config.model.layers),
        hidden(config.model.hidden),
        q(config.model.heads * config.model.head_dim),
        kv(2 * config.model.kv_heads * config.model.head_dim),
        rows(config.batch.micro * config.data.seq),
        micro_batches(config.batch.global / (config.batch.micro * mesh.dp)),
        bytes(narrow<Index>(size_of(dtype_from_name(config.precision.compute)))) {
    for (const model::UnitSpec& unit : model::describe_units(config.model)) {
      parameters += unit.elements;
      whole_blocks += round_up(unit.elements, device::kSumBlock);
      (unit.name == "embedding" ? embedding : unit.name == "head" ? head : layer) = unit.elements;
    }
    norms = layers * (2 * hidden + 2 * config.model.head_dim) + hidden;
  }
  Index layers, hidden, q, kv, rows, micro_batches, bytes;
  Index parameters = 0, whole_blocks = 0, embedding = 0, layer = 0, head = 0, norms = 0;
};

class Volume : public ::testing::TestWithParam<const char*> {
 protected:
  Volume() { config_.precision.compute = GetParam(); }
  Sent sent(const comm::MeshShape& shape) {
    comm::Mesh mesh(testing::session(), shape, cartan::testing::test_device_kind());
    return sent_in_a_step(config_, mesh);
  }
  Config config_ = small_config();
  int ranks_ = testing::session().world_size();
};
INSTANTIATE_TEST_SUITE_P(Types, Volume, ::testing::Values("fp32", "bf16"));

TEST_P(Volume, OfTheDataPlaneFollowsFromTheZeroStage) {
  const comm::MeshShape shape{1, ranks_, 1, 1};
  const Index others = ranks_ - 1;
  for (const Index micro : {1, 2}) {
    config_.batch.micro = micro;
    const Sizes of(config_, shape);
    const Index m = of.micro_batches;
    config_.zero.stage = 0;
    EXPECT_EQ(sent(shape), (Sent{0, 2 * others * of.whole_blocks * 4, 0, 0}));
    config_.zero.stage = 1;
    EXPECT_EQ(sent(shape), (Sent{0, others * of.parameters * (4 + of.bytes), 0, 0}));
    config_.zero.stage = 2;
    EXPECT_EQ(sent(shape), (Sent{0, others * of.parameters * (4 * m + of.bytes), 0, 0}));
    config_.zero.stage = 3;
    for (const Index windows : {1, 2, 4}) {
      config_.zero.prefetch = narrow<int>(windows);
      const Index gathers = m * (2 * of.layers - 2 * windows + 1) + windows;
      EXPECT_EQ(sent(shape), (Sent{0,
                                   others * (4 * m * of.parameters +
                                             of.bytes * (gathers * of.layer + m * of.head + of.embedding)),
                                   0, 0}))
          << windows << " windows";
    }
  }
}

TEST_P(Volume, OfTensorParallelismIsTenTimesTheRowsOfALayer) {
  const comm::MeshShape shape{1, 1, 1, ranks_};
  for (const int chunks : {1, 3}) {
    config_.tensor.chunks = chunks;
    const Sizes of(config_, shape);
    const Index others = ranks_ - 1;
    const Index activations = (10 * of.layers + 4) * of.rows * of.hidden * of.bytes;
    const Index loss = 3 * of.rows * ranks_ * 4;
    EXPECT_EQ(sent(shape),
              (Sent{0, 0, 0, others * (of.micro_batches * (activations + loss) + 2 * of.norms * 4)}));
  }
}

TEST_P(Volume, OfContextParallelismIsThatOfItsExchange) {
  const comm::MeshShape shape{1, 1, ranks_, 1};
  const Sizes of(config_, shape);
  const Index c = ranks_, calls = of.micro_batches * of.layers;
  const Index gradients = 2 * (c - 1) * of.whole_blocks * 4;  // cp's ranks are in the data plane
  config_.context.exchange = "ring";
  EXPECT_EQ(sent(shape), (Sent{0, gradients, calls * of.rows * of.kv * (2 * (c - 1) * of.bytes + c * 4), 0}));
  config_.context.exchange = "all-gather";
  EXPECT_EQ(sent(shape), (Sent{0, gradients, calls * of.rows * of.kv * (c - 1) * (2 * of.bytes + 4), 0}));
  config_.context.exchange = "all-to-all";
  EXPECT_EQ(sent(shape),
            (Sent{0, gradients, calls * of.rows * (6 * of.q + 3 * of.kv) * (c - 1) / c * of.bytes, 0}));
}

TEST_P(Volume, OfAPipelineIsTheResidualStreamAtItsBoundaries) {
  if (!testing::session().thread_multiple()) GTEST_SKIP() << "needs MPI_THREAD_MULTIPLE";
  const comm::MeshShape shape{ranks_, 1, 1, 1};
  const Sizes of(config_, shape);
  for (const char* schedule : {"gpipe", "1f1b", "zero-bubble", "interleaved"}) {
    config_.pipeline.schedule = schedule;
    config_.pipeline.chunks = std::string(schedule) == "interleaved" && ranks_ == 2 ? 2 : 1;
    if (std::string(schedule) == "interleaved" && config_.pipeline.chunks == 1) continue;
    const Index boundaries = ranks_ * config_.pipeline.chunks - 1;
    EXPECT_EQ(sent(shape),
              (Sent{2 * boundaries * of.micro_batches * of.rows * of.hidden * of.bytes, 0, 0, 0}))
        << schedule;
  }
}

TEST_P(Volume, OfEachAxisIsItsOwnWhereAxesMeet) {
  if (ranks_ != 4 || !testing::session().thread_multiple()) GTEST_SKIP() << "needs 4 ranks";
  const Sizes of(config_, {2, 1, 1, 2});
  const Index activations = of.micro_batches * of.rows * of.hidden * of.bytes;
  // Two stages of two ranks: rows of the residual stream are halved by tp, of which there are two groups.
  const Sent pp_tp = sent({2, 1, 1, 2});
  EXPECT_EQ(pp_tp[0], 2 * activations);
  EXPECT_EQ(pp_tp[3],
            (10 * of.layers + 4) * activations + of.micro_batches * 3 * of.rows * 2 * 4 + 2 * of.norms * 4);
  // Each of cp's two groups of tp has half of the rows.
  const Sent cp_tp = sent({1, 1, 2, 2});
  EXPECT_EQ(cp_tp[3], (10 * of.layers + 4) * activations + of.micro_batches * 3 * of.rows * 2 * 4 +
                          2 * 2 * of.norms * 4);
  EXPECT_EQ(cp_tp[2], of.micro_batches * of.layers * of.rows * of.kv * (2 * of.bytes + 2 * 4));
}

}  // namespace
}  // namespace cartan::train
