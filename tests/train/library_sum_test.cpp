// Gradients that NCCL adds in its own order, with every life that gradients have.
#include "toy_run.hpp"

namespace cartan::train {
namespace {

TEST(LibrarySum, TrainsAsCanonicalSumsDoUpToRounding) {
  comm::Session& session = testing::session();
  const int ranks = session.world_size();
  const auto device = cartan::testing::make_test_device(1);  // before the mesh: it chooses the GPU
  comm::Mesh mesh(session, comm::MeshShape{1, ranks, 1, 1}, cartan::testing::test_device_kind());
  Config config = odd_config(true);
  config.model.layers = 2;
  config.optim.eps = 1e-3;  // or AdamW makes steps as large as any of gradients that are all rounding
  const Index micro = std::max<Index>(1, kGlobal / ranks / 2);  // so that several are summed up
  const int steps = 2;
  const Outcome canonical = run(config, micro, 1.0, 1, mesh, true, steps);
  config.precision.sum = "nccl";
  bool differs = false;
  for (const int stage : {0, 1, 2, 3}) {
    for (const int shard : {0, 2}) {
      if (shard != 0 && (stage == 0 || ranks != 4)) continue;
      config.zero.stage = stage;
      config.zero.shard = shard;
      // In ZeRO 0 a bucket that is not a multiple of anything.
      const Outcome found = run(config, micro, stage == 0 ? 0.021 : 1.0, 1, mesh, true, steps);
      expect_near(found, canonical, "fp32", fmt::format("ZeRO {}, shards of {}", stage, shard));
      differs = differs || !(found == canonical);
    }
  }
  // The sum of two numbers has one order, but each rank's three sequences are then added before the ranks'
  // sums.
  EXPECT_TRUE(differs) << "the key changed nothing";
}

}  // namespace
}  // namespace cartan::train
