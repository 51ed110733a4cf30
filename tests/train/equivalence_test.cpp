// Every mesh trains as one rank does: the same bits where only batch, states or layers are spread, the same
// numbers up to rounding where products are cut.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <utility>

#include "cartan/model/context_group.hpp"
#include "support/test_device.hpp"
#include "train/toy_run.hpp"

namespace cartan::train {
namespace {

constexpr Index kCutSeq = 24;  // which every mesh below can cut

/// Kernels are emulated slowly: there a batch that just reaches every rank.
Index global_batch(int ranks) {
  if (cartan::testing::on_cpu()) return kGlobal;
  return ranks % 3 == 0 ? ranks : std::max(4, ranks);
}

class Equivalence : public ::testing::TestWithParam<std::tuple<bool, std::string>> {
 protected:
  Equivalence() : config_(odd_config(std::get<0>(GetParam()))) {
    config_.precision.compute = std::get<1>(GetParam());
    config_.batch.global = global_;
  }
  /// Where it takes long each type goes with one of the models; on 8 ranks with the other one.
  void SetUp() override {
    const bool is_tied = std::get<0>(GetParam()), goes_with_tied = is_fp32() == (ranks_ == 8);
    if ((!cartan::testing::on_cpu() || ranks_ > 3) && is_tied != goes_with_tied)
      GTEST_SKIP() << "only the other model is tried with this type here";
  }
  bool is_fp32() const { return std::get<1>(GetParam()) == "fp32"; }
  Outcome on(comm::Mesh& mesh, Index micro, bool overlap, int steps = kSteps) const {
    return run(config_, micro, 1.0, 1, mesh, overlap, cartan::testing::on_cpu() ? steps : 2);
  }
  Outcome on_one_rank(int steps = kSteps) const {
    comm::Mesh alone = comm::Mesh::alone();
    return on(alone, 1, false, steps);
  }
  /// Whether mesh number `turn` is tried: with four ranks, whose meshes are many, a lazy and a random
  /// schedule of streams have half of them each.
  bool is_of_schedule(int turn) const {
    const char* const schedule = std::getenv("EMU_SCHEDULE");
    return ranks_ < 4 || schedule == nullptr || turn % 2 == (schedule[0] == 'l' ? 0 : 1);
  }
  /// Whether combination number `turn` is tried: all of them, or each third one.
  static bool is_tried(int turn) { return cartan::testing::on_cpu() || turn % 3 == 0; }

  comm::Session& session_ = testing::session();
  int ranks_ = testing::session().world_size();
  Index global_ = global_batch(ranks_);
  Config config_;
};

INSTANTIATE_TEST_SUITE_P(Models, Equivalence,
                         ::testing::Combine(::testing::Bool(), ::testing::Values("fp32", "bf16")),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param) ? "tied_" : "untied_") +
                                  std::get<1>(test.param);
                         });

TEST_P(Equivalence, BitsDoNotDependOnZeroStageOrShards) {
  if (global_ % ranks_ != 0) return;
  comm::Mesh mesh(session_, {1, ranks_, 1, 1}, cartan::testing::test_device_kind());
  const Outcome one = on_one_rank();
  int turn = 0;
  for (const int shard : {0, 2})
    for (const int stage : {3, 2, 1}) {
      if (shard != 0 && ranks_ % shard != 0) continue;
      for (const Index micro : {1, 2, 3}) {
        if (global_ % (micro * ranks_) != 0 || !is_tried(turn++)) continue;
        config_.zero.stage = stage;
        config_.zero.shard = shard;
        config_.zero.prefetch = static_cast<int>(micro);
        expect_same_bits(on(mesh, micro, session_.thread_multiple() && micro != 2), one,
                         fmt::format("stage {}, shards of {}, micro-batch {}", stage, shard, micro));
      }
    }
}

TEST_P(Equivalence, BitsDoNotDependOnPipelineStagesOrSchedules) {
  if (!session_.thread_multiple()) GTEST_SKIP() << "needs MPI_THREAD_MULTIPLE";
  const Outcome one = on_one_rank();
  for (const int stages : {2, 3}) {
    if (ranks_ % stages != 0 || global_ % (ranks_ / stages) != 0) continue;
    comm::Mesh mesh(session_, {stages, ranks_ / stages, 1, 1}, cartan::testing::test_device_kind());
    int turn = 0;
    for (const char* schedule : {"gpipe", "1f1b", "zero-bubble", "interleaved"}) {
      for (const int stage : {0, 2, 3}) {
        const bool is_interleaved = std::string(schedule) == "interleaved";
        if ((is_interleaved && stages != 2) || !is_tried(turn++)) continue;  // three layers
        config_.pipeline.schedule = schedule;
        config_.pipeline.chunks = is_interleaved ? 2 : 1;
        config_.zero.stage = stage;
        expect_same_bits(on(mesh, 1, true), one,
                         fmt::format("{} of {} stages, ZeRO {}", schedule, stages, stage));
      }
      ++turn;  // the third that is tried has every schedule and every stage
    }
  }
}

/// Every mesh of so many ranks that the odd model and its batch allow.
std::vector<comm::MeshShape> meshes_of(int ranks) {
  std::vector<comm::MeshShape> meshes;
  const auto add = [&](int pp, int cp, int tp, const std::string& grid) {
    const int inner = pp * cp * tp;
    if (ranks % inner == 0 && global_batch(ranks) % (ranks / inner) == 0 && ranks <= 2 * 2 * 2 * 2)
      meshes.push_back({pp, ranks / inner, cp, tp, grid});
  };
  for (const int pp : {1, 2, 3})
    for (const int cp : {1, 2, 3})
      for (const int tp : {1, 2, 6}) add(pp, cp, tp, "");
  for (const auto& [rows, columns] : {std::pair{2, 1}, {3, 1}, {2, 2}, {3, 2}})
    for (const auto& [pp, cp] : {std::pair{1, 1}, {2, 1}, {3, 1}, {1, 2}})
      add(pp, cp, rows * columns, fmt::format("{}x{}", rows, columns));
  if (ranks == 16) meshes = {{2, 2, 2, 2}};
  return meshes;
}

TEST(EquivalenceSuite, HasEachAxisAllPairsAllTriplesAndAllFour) {
  std::set<std::set<comm::Axis>> combinations;
  std::set<std::string> meshes;
  for (const int ranks : {2, 3, 4, 6, 8, 16})
    for (const comm::MeshShape& shape : meshes_of(ranks)) {
      meshes.insert(comm::to_string(shape) + shape.tp_grid);
      const std::array<int, 4> extents{shape.pp, shape.dp, shape.cp, shape.tp};
      std::set<comm::Axis> used;
      for (const comm::Axis axis : comm::kAxes)
        if (extents[static_cast<std::size_t>(axis)] > 1) used.insert(axis);
      combinations.insert(used);
    }
  EXPECT_GE(meshes.size(), 40u);
  EXPECT_EQ(combinations.size(), 15u);
}

TEST_P(Equivalence, OfTenStepsOnEveryMesh) {
  if (!session_.thread_multiple()) GTEST_SKIP() << "needs MPI_THREAD_MULTIPLE";
  const int steps = is_fp32() ? 10 : kSteps;
  config_.data.seq = kCutSeq;
  if (is_fp32())
    config_.optim.lr = 1e-3;  // AdamW makes steps of this size of gradients that are rounding alone
  const Config base = config_;
  const Outcome one = on_one_rank(steps);
  int turn = 0;
  for (const comm::MeshShape& shape : meshes_of(ranks_)) {
    comm::Mesh mesh(session_, shape, cartan::testing::test_device_kind());
    const int context = mesh.shape().context(), columns = mesh.shape().columns();
    for (const char* exchange : {"ring", "all-gather", "all-to-all"}) {
      if (context == 1 && std::string(exchange) != "ring") continue;
      const std::string why_not = model::why_not(config_.model, kCutSeq, context, columns,
                                                 model::context_exchange_from_name(exchange));
      EXPECT_TRUE(why_not.empty() || std::string(exchange) != "ring") << why_not;
      if (!why_not.empty()) continue;
      // What goes with which mesh changes from mesh to mesh.
      config_ = base;
      config_.context.exchange = exchange;
      config_.zero.stage = turn % 4;
      config_.pipeline.schedule = turn % 3 == 0 ? "1f1b" : turn % 3 == 1 ? "zero-bubble" : "gpipe";
      config_.zero.offload = turn % 4 == 2 ? "states" : turn % 4 == 3 ? "all" : "none";
      config_.recompute.policy = turn % 5 == 1   ? "block"
                                 : turn % 5 == 3 ? "attention"
                                 : turn % 5 == 4 ? "offload"
                                                 : "none";
      config_.tensor.chunks = 1 + turn % 4;
      ++turn;
      if (!is_fp32() && turn % 3 != 1) continue;  // losses only: every third one will do
      if (!is_of_schedule(turn)) continue;
      const Index micro = global_ % (2 * shape.dp) == 0 ? 2 : 1;
      const std::string where =
          fmt::format("{}, {}, ZeRO {}, offload {}, {}, recompute {}, {} chunks",
                      comm::to_string(mesh.shape()), exchange, config_.zero.stage, config_.zero.offload,
                      config_.pipeline.schedule, config_.recompute.policy, config_.tensor.chunks);
      const Outcome found = on(mesh, micro, true, steps);
      if (context == 1 && columns == 1)
        expect_same_bits(found, one, where);
      else
        expect_near(found, one, config_.precision.compute, where);
    }
  }
}

// What users of other systems had to live with. The rate is the same on every mesh.

constexpr std::string_view kTriedAbove = "the emulated device makes two steps only, as in the tests above";

TEST_P(Equivalence, ZeRO3NeedsNoChangeOfTheLearningRate) {
  if (!cartan::testing::on_cpu()) GTEST_SKIP() << kTriedAbove;
  if (global_ % ranks_ != 0) return;
  const Outcome one = on_one_rank(10);
  comm::Mesh mesh(session_, {1, ranks_, 1, 1}, cartan::testing::test_device_kind());
  config_.zero.stage = 3;
  expect_same_bits(on(mesh, 1, session_.thread_multiple(), 10), one, "ZeRO 3");
}

TEST_P(Equivalence, APipelineDoesNotMakeTheLossOscillate) {
  if (!cartan::testing::on_cpu()) GTEST_SKIP() << kTriedAbove;
  if (!session_.thread_multiple()) GTEST_SKIP() << "needs MPI_THREAD_MULTIPLE";
  const Outcome one = on_one_rank(10);
  for (const int stages : {2, 3}) {
    if (ranks_ != stages) continue;
    comm::Mesh mesh(session_, {stages, 1, 1, 1}, cartan::testing::test_device_kind());
    for (const char* schedule : {"1f1b", "zero-bubble"}) {
      config_.pipeline.schedule = schedule;
      expect_same_bits(on(mesh, 1, true, 10), one, schedule);
    }
  }
}

TEST_P(Equivalence, ContextAndPipelineDoNotConflict) {
  if (!session_.thread_multiple()) GTEST_SKIP() << "needs MPI_THREAD_MULTIPLE";
  if (!cartan::testing::on_cpu()) GTEST_SKIP() << kTriedAbove;
  if (ranks_ != 4) return;
  config_.data.seq = kCutSeq;
  config_.optim.lr = 1e-3;
  const Outcome one = on_one_rank();
  comm::Mesh mesh(session_, {2, 1, 2, 1}, cartan::testing::test_device_kind());
  for (const char* exchange : {"ring", "all-gather", "all-to-all"})
    for (const char* schedule : {"gpipe", "1f1b", "zero-bubble"}) {
      config_.context.exchange = exchange;
      config_.pipeline.schedule = schedule;
      expect_near(on(mesh, 1, true), one, config_.precision.compute,
                  fmt::format("{}, {}", exchange, schedule));
    }
}

}  // namespace
}  // namespace cartan::train
