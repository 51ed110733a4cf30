#include "cartan/shard/placement.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace cartan::shard {
namespace {

// How often each element of a [rows, cols] tensor is held over all ranks.
std::vector<int> coverage(const Placement& placement, Index rows, Index cols, const comm::MeshShape& mesh) {
  std::vector<int> held(static_cast<std::size_t>(rows * cols), 0);
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const Slice s = placement.local_slice({rows, cols}, mesh, comm::coordinate_of(mesh, rank));
    for (Index r = s.start[0]; r < s.start[0] + s.count[0]; ++r)
      for (Index c = s.start[1]; c < s.start[1] + s.count[1]; ++c)
        ++held[static_cast<std::size_t>(r * cols + c)];
  }
  return held;
}

TEST(Placement, ReplicatedTensorsAreWholeOnEveryRank) {
  const comm::MeshShape mesh{1, 3, 1, 2};
  for (const int times : coverage(Placement(), 5, 7, mesh)) EXPECT_EQ(times, 6);
}

TEST(Placement, SplitTensorsCoverEveryElementOncePerReplica) {
  const comm::MeshShape mesh{1, 2, 1, 3};
  for (const int dimension : {0, 1}) {
    Placement placement;
    placement.split(comm::Axis::tp, dimension);
    for (const int times : coverage(placement, 7, 5, mesh)) EXPECT_EQ(times, 2);  // one for each dp rank
    placement.split(comm::Axis::dp, dimension);
    for (const int times : coverage(placement, 7, 5, mesh)) EXPECT_EQ(times, 1);
    for (const int times : coverage(placement, 2, 2, mesh)) EXPECT_EQ(times, 1);  // more ranks than rows
  }
}

TEST(Placement, FollowsTheModelsRule) {
  model::ParameterSpec column{"w", {8, 4}, 0, true, model::Init::normal, 0};
  const Slice s = Placement(column).local_slice(column.shape, {1, 1, 1, 4}, {0, 0, 0, 2});
  EXPECT_EQ(s, (Slice{{4, 0}, {2, 4}}));
  EXPECT_EQ(s.elements(), 8);
}

}  // namespace
}  // namespace cartan::shard
