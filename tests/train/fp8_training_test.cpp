// Training with matrix products in 8 bits: nearly as with bf16, with the same bits on every mesh that
// promises them, and after a restart on another one.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "cartan/core/json.hpp"
#include "cartan/store/checkpoint.hpp"
#include "cartan/store/slab_copy.hpp"
#include "cartan/train/snapshot.hpp"
#include "support/test_device.hpp"
#include "train/toy_run.hpp"

namespace cartan::train {
namespace {

constexpr Index kBatch = 4;

/// Every product of a block has multiples of 16, also in halves over tp.
Config even_config(bool tied) {
  Config config = odd_config(tied);
  config.model.hidden = 32;
  config.model.layers = 2;
  config.model.heads = 2;
  config.model.kv_heads = 2;
  config.model.head_dim = 16;
  config.model.ffn = 32;
  config.data.seq = 32;
  config.batch.global = kBatch;
  config.precision.compute = "bf16";
  config.precision.products = "fp8";
  config.precision.fp8_history = 2;
  return config;
}

Config in_bf16(Config config) {
  config.precision.products = "compute";
  return config;
}

class Fp8Training : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!cartan::testing::on_cpu() && GetParam()) GTEST_SKIP() << "one model is enough where each takes long";
  }
  Outcome on_one_rank(const Config& config, Index micro = 1) const {
    comm::Mesh alone = comm::Mesh::alone();
    return run(config, micro, 1.0, 1, alone, false);
  }
  comm::Mesh mesh(const comm::MeshShape& shape) {
    return {session_, shape, cartan::testing::test_device_kind()};
  }
  comm::Session& session_ = testing::session();
  int ranks_ = testing::session().world_size();
  bool overlap_ = testing::session().thread_multiple();
  Config config_ = even_config(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Models, Fp8Training, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "tied" : "untied"; });

TEST_P(Fp8Training, BitsDoNotDependOnMicroBatchesOrRecomputation) {
  if (ranks_ > 1) return;  // every rank would do the same
  const Outcome one = on_one_rank(config_);
  EXPECT_NE(one.numbers[0], on_one_rank(in_bf16(config_)).numbers[0]) << "products are not made in 8 bits";
  expect_same_bits(on_one_rank(config_, 2), one, "micro-batches of 2");
  config_.recompute.policy = "block";
  expect_same_bits(on_one_rank(config_, 3), one, "micro-batches of 3 and 1, recomputed");
  config_.recompute.policy = "none";
  config_.optim.clip = 0;
  const Outcome unclipped = on_one_rank(config_, 1);
  expect_same_bits(on_one_rank(config_, kBatch), unclipped, "updated during the backward pass");
}

TEST_P(Fp8Training, BitsDoNotDependOnRanksOrZeroStages) {
  if (kBatch % ranks_ != 0 || ranks_ == 1) return;
  comm::Mesh plane = mesh({1, ranks_, 1, 1});
  const Outcome one = on_one_rank(config_);
  for (const int stage : {0, 1, 2, 3}) {
    config_.zero.stage = stage;
    const Index micro = kBatch / ranks_ >= 2 ? 1 + stage % 2 : 1;
    expect_same_bits(run(config_, micro, 1.0, 1, plane, overlap_), one, fmt::format("ZeRO {}", stage));
  }
}

TEST_P(Fp8Training, BitsDoNotDependOnPipelines) {
  if (ranks_ % 2 != 0 || !overlap_) return;
  comm::Mesh stages = mesh({2, ranks_ / 2, 1, 1});
  const Outcome one = on_one_rank(config_);
  for (const char* schedule : {"1f1b", "zero-bubble"}) {
    config_.pipeline.schedule = schedule;
    expect_same_bits(run(config_, 1, 1.0, 1, stages, true), one, schedule);
  }
}

TEST_P(Fp8Training, TensorAndContextParallelismStayNear) {
  if (ranks_ % 2 != 0 || !overlap_) return;
  const Outcome one = on_one_rank(config_);
  for (const int chunks : {1, 2}) {
    comm::Mesh split = mesh({1, ranks_ / 2, 1, 2});
    config_.tensor.chunks = chunks;
    const Outcome found = run(config_, 1, 1.0, 1, split, true);
    expect_near(found, one, "bf16", fmt::format("tp, {} chunks", chunks));
  }
  config_.tensor.chunks = 1;
  comm::Mesh cut = mesh({1, ranks_ / 2, 2, 1});
  expect_near(run(config_, 1, 1.0, 1, cut, true), one, "bf16", "cp");
}

TEST_P(Fp8Training, ShapesThatDoNotFitAreComputedInBf16) {
  comm::Mesh plane = mesh({1, ranks_, 1, 1});
  if (kBatch % ranks_ != 0) return;
  Config short_sequences = config_;
  short_sequences.data.seq = 24;
  expect_same_bits(run(short_sequences, 1, 1.0, 1, plane, overlap_), on_one_rank(in_bf16(short_sequences)),
                   "sequences of 24");
  // The products of gate and up fit, that of down does not.
  config_.model.ffn = 24;
  const Outcome one = on_one_rank(config_);
  EXPECT_NE(one.numbers[0], on_one_rank(in_bf16(config_)).numbers[0]);
  expect_same_bits(run(config_, 1, 1.0, 1, plane, overlap_), one, "24 feed-forward columns");
}

/// Losses of steps on one batch.
std::vector<double> losses_of(Config config, comm::Mesh& mesh, int steps) {
  config.batch.micro = 1;
  config.mesh = mesh.shape();
  config.run.threads = 1;
  config.run.device = cartan::testing::test_device_name();
  const auto device = cartan::testing::make_test_device(1);
  Engine engine(config, *device, mesh, testing::session().thread_multiple());
  engine.state().initialise(config.model, 7);
  std::vector<double> losses;
  for (int step = 1; step <= steps; ++step) {
    Index next = 0;
    const NextBatch batches = [&](data::MicroBatch& batch) {
      const LeafRange leaves = engine.share().of(next++);
      batch = make_batch(0, leaves.begin, leaves.end - leaves.begin, config.data.seq);
    };
    losses.push_back(engine.train_step(step, 3e-3, batches).loss);
  }
  return losses;
}

TEST_P(Fp8Training, LossesFallNearlyAsInBf16) {
  if (kBatch % ranks_ != 0) return;
  if (!cartan::testing::on_cpu()) GTEST_SKIP() << "the emulated device takes long";
  constexpr int kMany = 16;
  comm::Mesh plane = mesh({1, ranks_, 1, 1});
  const std::vector<double> fp8 = losses_of(config_, plane, kMany);
  const std::vector<double> bf16 = losses_of(in_bf16(config_), plane, kMany);
  ASSERT_LT(bf16.back(), 0.9 * bf16.front());
  for (std::size_t i = 0; i < fp8.size(); ++i) EXPECT_NEAR(fp8[i] / bf16[i], 1.0, 2e-2) << "step " << i + 1;
}

/// An engine that can be saved and loaded, as the trainer does it.
class SavedRun {
 public:
  SavedRun(Config config, comm::Mesh& mesh) : config_(std::move(config)), mesh_(mesh) {
    config_.batch.micro = 1;
    config_.mesh = mesh.shape();
    config_.run.device = cartan::testing::test_device_name();
    device_ = cartan::testing::make_test_device(1);
    engine_ = std::make_unique<Engine>(config_, *device_, mesh, testing::session().thread_multiple());
    engine_->state().initialise(config_.model, 7);
  }
  std::vector<double> train(int first, int end) {
    std::vector<double> numbers;
    for (int step = first; step < end; ++step) {
      Index next = 0;
      const NextBatch batches = [&](data::MicroBatch& batch) {
        const LeafRange leaves = engine_->share().of(next++);
        batch = make_batch(step, leaves.begin, leaves.end - leaves.begin, config_.data.seq);
      };
      const StepResult result = engine_->train_step(step + 1, config_.optim.lr, batches);
      numbers.insert(numbers.end(), {result.loss, result.grad_norm});
      next = 0;
      engine_->evaluate(batches);  // changes nothing
    }
    return numbers;
  }
  void save(const std::filesystem::path& path) {
    const auto tensors = checkpoint_tensors(config_.model, engine_->fp8_scales());
    auto slabs =
        checkpoint_slabs(tensors, engine_->state(), engine_->fp8_scales(), mesh_.world().rank() == 0);
    store::SlabCopy copy(*device_);
    if (!cartan::testing::on_cpu()) copy.copy(slabs, tensors);
    store::write_checkpoint(path, to_json({}, config_.model, kBatch, ""), tensors, slabs, mesh_.world(), {});
  }
  void load(const std::filesystem::path& path) {
    const store::CheckpointReader reader(path);
    train::load(reader, config_.model, engine_->state());
    if (engine_->fp8_scales() != nullptr) load_fp8(reader, *engine_->fp8_scales());
    engine_->state().refresh_compute();
    mesh_.world().barrier();
  }

 private:
  Config config_;
  comm::Mesh& mesh_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(Fp8Training, GoesOnWithTheSameBitsFromACheckpointOfAnotherMesh) {
  if (kBatch % ranks_ != 0 || !overlap_) return;
  comm::Mesh plane = mesh({1, ranks_, 1, 1});
  const bool has_stages = ranks_ % 2 == 0;
  comm::Mesh other =
      mesh(has_stages ? comm::MeshShape{2, ranks_ / 2, 1, 1} : comm::MeshShape{1, ranks_, 1, 1});
  const auto path =
      std::filesystem::temp_directory_path() /
      fmt::format("cartan_fp8_training_{}_{}_{}.h5", ranks_, cartan::testing::test_device_name(), GetParam());
  // The groups of a mesh work for one device at a time.
  std::vector<double> before, after;
  {
    SavedRun whole(config_, plane);
    before = whole.train(0, 3);
    after = whole.train(3, 6);
  }
  {
    SavedRun first(config_, other);
    EXPECT_EQ(first.train(0, 3), before);
    first.save(path);
  }
  const auto go_on = [&] {
    SavedRun second(config_, plane);
    second.load(path);
    return second.train(3, 6);
  };
  EXPECT_EQ(go_on(), after);

  // A checkpoint without a history begins with an empty one: other bits, and it trains on.
  {
    SavedRun plain(in_bf16(config_), plane);
    plain.train(0, 3);
    plain.save(path);
  }
  const std::vector<double> with_empty_history = go_on();
  for (std::size_t i = 0; i < after.size(); i += 2) EXPECT_NEAR(with_empty_history[i] / after[i], 1.0, 5e-2);
  plane.world().barrier();
  if (plane.world().rank() == 0) std::filesystem::remove(path);
}

}  // namespace
}  // namespace cartan::train
