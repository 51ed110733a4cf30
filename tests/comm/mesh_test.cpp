// Mesh arithmetic and the messages of meshes that do not fit.
#include "cartan/comm/mesh.hpp"

#include <gmock/gmock.h>

#include "cartan/core/error.hpp"

namespace cartan::comm {
namespace {

using testing::HasSubstr;

std::string refusal(const MeshShape& shape, int world_size) {
  try {
    resolve_mesh(shape, world_size);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Mesh, DpZeroTakesTheRanksThatAreLeft) {
  EXPECT_EQ(resolve_mesh({}, 1).dp, 1);
  EXPECT_EQ(resolve_mesh({}, 7).dp, 7);
  EXPECT_EQ(resolve_mesh({.pp = 2, .cp = 1, .tp = 3}, 24).dp, 4);
  EXPECT_EQ(resolve_mesh({.pp = 2, .dp = 2, .cp = 2, .tp = 2}, 16).size(), 16);
}

TEST(Mesh, ProductThatIsNotTheRanksNamesTheValuesThatFit) {
  const std::string tp = refusal({.pp = 2, .dp = 1, .cp = 1, .tp = 3}, 4);
  EXPECT_THAT(tp, HasSubstr("mesh pp*dp*cp*tp = 2*1*1*3 = 6, but the job has 4 ranks"));
  EXPECT_THAT(tp, HasSubstr("with pp = 2 and cp = 1, tp may be 1 or 2"));
  EXPECT_THAT(tp, HasSubstr("mesh.dp = 0"));
  EXPECT_THAT(tp, HasSubstr("start 6 ranks"));

  const std::string dp = refusal({.pp = 1, .dp = 3, .cp = 1, .tp = 2}, 8);
  EXPECT_THAT(dp, HasSubstr("1*3*1*2 = 6, but the job has 8 ranks: use mesh.dp = 4"));
}

TEST(Mesh, InnerAxesThatDoNotDivideTheRanksNameTheProductsThatDo) {
  EXPECT_THAT(
      refusal({.pp = 1, .dp = 0, .cp = 1, .tp = 5}, 6),
      HasSubstr(
          "mesh pp*cp*tp = 1*1*5 = 5 does not divide the 6 ranks of the job: with pp = 1 and cp = 1, tp may "
          "be 1, 2, 3 or 6"));
  EXPECT_THAT(refusal({.pp = 4, .dp = 0, .cp = 1, .tp = 1}, 6), HasSubstr("pp*cp*tp must be 1, 2, 3 or 6"));
}

TEST(Mesh, SizesBelowOneAreAllNamedAtOnce) {
  const std::string message = refusal({.pp = 0, .dp = -1, .cp = 1, .tp = -2}, 4);
  EXPECT_THAT(message, HasSubstr("3 problems in the mesh"));
  EXPECT_THAT(message, HasSubstr("mesh.pp = 0"));
  EXPECT_THAT(message, HasSubstr("mesh.dp = -1"));
  EXPECT_THAT(message, HasSubstr("mesh.tp = -2"));
}

TEST(Mesh, ProductsBeyondIntAreRefusedNotWrapped) {
  EXPECT_THAT(refusal({.pp = 65536, .dp = 1, .cp = 1, .tp = 65536}, 4), HasSubstr("4294967296"));
}

TEST(Mesh, CoordinatesAndRanksAreInverse) {
  const MeshShape shape{.pp = 2, .dp = 3, .cp = 2, .tp = 5};
  for (int rank = 0; rank < shape.size(); ++rank) EXPECT_EQ(rank_of(shape, coordinate_of(shape, rank)), rank);
}

TEST(Mesh, TpVariesFastestAndPpSlowest) {
  const MeshShape shape{.pp = 2, .dp = 2, .cp = 2, .tp = 2};
  EXPECT_EQ(coordinate_of(shape, 1), (MeshCoordinate{0, 0, 0, 1}));
  EXPECT_EQ(coordinate_of(shape, 2), (MeshCoordinate{0, 0, 1, 0}));
  EXPECT_EQ(coordinate_of(shape, 4), (MeshCoordinate{0, 1, 0, 0}));
  EXPECT_EQ(coordinate_of(shape, 8), (MeshCoordinate{1, 0, 0, 0}));
}

TEST(Mesh, AGridOfTensorParallelismHasItsRanksAndLiesNextToContext) {
  const MeshShape shape = resolve_mesh({.pp = 1, .dp = 0, .cp = 2, .tp_grid = "3x2"}, 24);
  EXPECT_EQ(shape.tp, 6);
  EXPECT_EQ(shape.dp, 2);
  EXPECT_EQ(shape.rows, 3);
  EXPECT_EQ(shape.columns(), 2);
  EXPECT_EQ(shape.extents(), (std::array{1, 2, 6, 2}));
  EXPECT_EQ(to_string(shape), "pp 1 x dp 2 x cp 2 x tp 6 (3x2)");
  EXPECT_EQ(coordinate_of(shape, 13), (MeshCoordinate{0, 1, 0, 1}));
  EXPECT_EQ(coordinate_of(shape, 5), (MeshCoordinate{0, 0, 2, 1}));
  for (int rank = 0; rank < shape.size(); ++rank) EXPECT_EQ(rank_of(shape, coordinate_of(shape, rank)), rank);
  EXPECT_EQ(resolve_mesh(shape, 24).extents(), shape.extents()) << "resolved twice";
}

TEST(Mesh, GridsThatAreNoneAreRefused) {
  for (const char* grid :
       {"2", "2x", "x2", "0x2", "2x0", "-2x2", "2x2x2", "2 x 2", "2x2 ", "two", "99999999999x1"})
    EXPECT_THAT(refusal({.dp = 1, .tp_grid = grid}, 4), HasSubstr("use ROWSxCOLUMNS, for example 2x2"))
        << grid;
  EXPECT_THAT(refusal({.dp = 1, .tp = 2, .tp_grid = "2x2"}, 4),
              HasSubstr("mesh.tp-grid = 2x2 has 4 ranks, but mesh.tp = 2: leave mesh.tp away, or use 4"));
  EXPECT_EQ(refusal({.dp = 1, .tp = 4, .tp_grid = "2x2"}, 4), "accepted");
}

TEST(Mesh, GroupsAreNamedByWhereTheyAre) {
  const MeshCoordinate at{.pp = 0, .dp = 1, .cp = 0, .tp = 3};
  EXPECT_EQ(group_name(Axis::tp, at), "tp[pp=0,dp=1,cp=0]");
  EXPECT_EQ(group_name(Axis::pp, at), "pp[dp=1,cp=0,tp=3]");
  EXPECT_EQ(plane_name(at), "dp.cp[pp=0,tp=3]");
  EXPECT_EQ(to_string({.pp = 1, .dp = 4, .cp = 1, .tp = 1}), "pp 1 x dp 4 x cp 1 x tp 1");
}

}  // namespace
}  // namespace cartan::comm
