#include "cartan/shard/gradient_reducer.hpp"

#include <gtest/gtest.h>

#include "cartan/core/narrow.hpp"
#include "support/mpi_session.hpp"
#include "support/small_model.hpp"
#include "support/test_device.hpp"

namespace cartan::shard {
namespace {

TEST(GradientReducer, SumsEveryElementOnceWhateverTheBucket) {
  const model::ModelConfig config = cartan::testing::small_model(2, true);
  comm::Session& session = testing::session();
  const int ranks = session.world_size();
  comm::Mesh mesh(session, comm::MeshShape{1, ranks, 1, 1}, cartan::testing::test_device_kind());
  const auto device = cartan::testing::make_test_device(1);
  const FlatLayout layout(config);
  const Index elements = layout.gradient_elements();
  for (const Index bucket : {Index{1}, Index{3000}, elements, 10 * elements}) {
    const auto stream = device->make_stream("reduction");
    FlatState state(layout, {DType::f32, 1}, *device, {&mesh.data_plane(), &mesh.data_plane(), stream.get()});
    GradientReducer reducer(state, mesh.data_plane(), nullptr, {ranks, 1, bucket},
                            *stream);  // one sequence a rank
    for (int round = 0; round < 2; ++round) {
      // Small whole numbers, so that every order gives the same bits.
      for (Index i = 0; i < elements; ++i)
        state.slots()[0][i] = static_cast<float>((i + round) % 17 + session.rank());
      for (std::size_t unit = layout.units().size(); unit-- > 0;) reducer.unit_ready(unit, {0, ranks}, true);
      reducer.finish();
      int wrong = 0;
      for (Index i = 0; i < elements; ++i) {
        const auto expected = static_cast<float>((i + round) % 17 * ranks + ranks * (ranks - 1) / 2);
        wrong += state.slots()[0][i] == expected ? 0 : 1;
      }
      EXPECT_EQ(wrong, 0) << "bucket of " << bucket << ", round " << round;
      mesh.world().barrier();  // nobody refills while others still look
    }
  }
}

}  // namespace
}  // namespace cartan::shard
