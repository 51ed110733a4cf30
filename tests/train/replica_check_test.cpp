// A bit that flips in one rank's copy of a parameter is found, with its tensor and rank.
#include <gmock/gmock.h>

#include "support/test_device.hpp"
#include "train/toy_run.hpp"

namespace cartan::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Trial {
  const char* what;
  comm::MeshShape shape;
  int stage = 0, shard = 0;
  const char* compute = "fp32";
  bool owned = false;  ///< the bit is in the master parameters, not in those for computing
  std::size_t unit = 1;
  std::string tensor = "model.layers.0.mlp.up_proj.weight";
  int culprit = 1;
  bool tied = true;
};

/// What the check says before and after the lowest bit of the first element that the culprit has flips.
std::pair<std::string, std::string> find(const Trial& trial) {
  Config config = odd_config(trial.tied);
  config.data.seq = 36;
  config.batch.micro = 1;
  config.run.threads = 1;
  config.zero.stage = trial.stage;
  config.zero.shard = trial.shard;
  config.precision.compute = trial.compute;
  comm::Mesh mesh(testing::session(), trial.shape, cartan::testing::test_device_kind());
  config.mesh = mesh.shape();
  const auto device = cartan::testing::make_test_device(1);
  Engine engine(config, *device, mesh, testing::session().thread_multiple());
  engine.state().initialise(config.model, 7);
  Index next = 0;
  engine.train_step(1, 1e-3, [&](data::MicroBatch& batch) {
    const LeafRange leaves = engine.share().of(next++);
    batch = make_batch(0, leaves.begin, leaves.end - leaves.begin, config.data.seq);
  });
  const std::string before = engine.find_replica_difference();
  if (mesh.world().rank() == trial.culprit) {
    const shard::FlatUnit& unit = engine.layout().units()[trial.unit];
    const model::ParameterSpec& parameter = unit.spec->parameter(trial.tensor);
    const Index begin =
        trial.owned ? std::max(parameter.offset, unit.gradient.owned.begin) : parameter.offset;
    CARTAN_ASSERT(begin < parameter.offset + parameter.elements());
    const device::Vector value = trial.owned ? engine.state().master(trial.unit, begin, 1)
                                             : engine.state().whole(trial.unit, begin, 1);
    auto byte = cartan::testing::download<unsigned char>(*device, value.data, 1);
    byte[0] ^= 1;
    cartan::testing::upload(*device, value.data, byte);
  }
  return {before, engine.find_replica_difference()};
}

void expect_found(const Trial& trial, const std::string& who) {
  const auto [before, after] = find(trial);
  EXPECT_EQ(before, "") << trial.what;
  EXPECT_THAT(after, AllOf(HasSubstr(trial.tensor + ": "), HasSubstr(who))) << trial.what;
}

TEST(ReplicaCheck, NamesTensorAndRankOfAFlippedBit) {
  const int n = testing::session().world_size();
  const std::string who = n == 2   ? "ranks 0 and 1 hold different values"
                          : n == 3 ? "rank 1 holds other values than the other 2 of 3 replicas"
                                   : "rank 1 holds other values than the other 3 of 4 replicas";
  const comm::MeshShape dp{1, n, 1, 1}, tp{1, 1, 1, n}, cp{1, 1, n, 1};
  for (const char* compute : {"fp32", "bf16"})
    for (const int stage : {0, 1, 2})
      expect_found({.what = "parameters for computing", .shape = dp, .stage = stage, .compute = compute},
                   who);
  expect_found({.what = "master parameters", .shape = dp, .compute = "bf16", .owned = true}, who);
  if (n < 4) expect_found({.what = "context", .shape = cp}, who);
  if (n == 2) {
    expect_found({.what = "norms of tensor parallelism",
                  .shape = tp,
                  .owned = true,
                  .tensor = "model.layers.0.input_layernorm.weight"},
                 who);
    if (testing::session().thread_multiple())
      expect_found({.what = "tied embedding",
                    .shape = {2, 1, 1, 1},
                    .owned = true,
                    .unit = 0,
                    .tensor = "model.embed_tokens.weight"},
                   who);
  }
  if (n == 4) {
    expect_found({.what = "ZeRO 3 in groups of two",
                  .shape = dp,
                  .stage = 3,
                  .shard = 2,
                  .owned = true,
                  .tensor = "model.layers.0.mlp.down_proj.weight"},
                 "and");
    // Rank 2 holds the other half of the model's key/value heads.
    expect_found({.what = "tensor parallelism beside data",
                  .shape = {1, 2, 1, 2},
                  .owned = true,
                  .tensor = "model.layers.0.mlp.up_proj.weight"},
                 "ranks 1 and 3 hold different values");
  }
}

}  // namespace
}  // namespace cartan::train
