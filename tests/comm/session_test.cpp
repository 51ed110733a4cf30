// Session and mesh under mpirun: who is where, how groups are named and ordered.
#include "cartan/comm/mesh_groups.hpp"

#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdlib>
#include <cstring>

#include "comm/mpi/mpi_communicator.hpp"

namespace cartan::comm {
namespace {

class MeshOfRanks : public testing::Test {
 protected:
  MeshOfRanks() : session_(argc_, argv_) {}

  /// The world ranks of a group, in the group's order.
  std::vector<int> members(Communicator& comm) {
    const std::vector<int> mine{session_.rank()};
    std::vector<int> all(static_cast<std::size_t>(comm.size()));
    comm.all_gather_host(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
    return all;
  }

  int argc_ = 0;
  char** argv_ = nullptr;
  Session session_;
};

TEST_F(MeshOfRanks, SessionKnowsWhoAndWhereItIs) {
  int rank = -1, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  EXPECT_EQ(session_.rank(), rank);
  EXPECT_EQ(session_.world_size(), size);
  EXPECT_EQ(session_.ranks_on_node(), size);
  EXPECT_EQ(session_.node_rank(), rank);
  EXPECT_FALSE(session_.host().empty());
  EXPECT_TRUE(session_.thread_multiple());
}

TEST_F(MeshOfRanks, DefaultMeshIsDataParallel) {
  Mesh mesh(session_, {});
  EXPECT_EQ(mesh.shape().dp, session_.world_size());
  EXPECT_EQ(mesh.coordinate().dp, session_.rank());
  EXPECT_EQ(mesh.world().name(), "world");
  EXPECT_EQ(mesh.axis(Axis::dp).name(), "dp[pp=0,cp=0,tp=0]");
  EXPECT_EQ(mesh.axis(Axis::tp).size(), 1);
  EXPECT_EQ(mesh.data_plane().name(), "dp.cp[pp=0,tp=0]");
  EXPECT_EQ(members(mesh.data_plane()), members(mesh.world()));
}

TEST_F(MeshOfRanks, EveryAxisJoinsTheRanksThatDifferInItOnly) {
  if (session_.world_size() != 4) GTEST_SKIP() << "needs 4 ranks";
  for (const MeshShape& shape : {MeshShape{2, 2, 1, 1}, MeshShape{1, 2, 2, 1}, MeshShape{1, 2, 1, 2},
                                 MeshShape{1, 1, 2, 2}, MeshShape{2, 1, 1, 2}, MeshShape{4, 1, 1, 1}}) {
    Mesh mesh(session_, shape);
    const MeshCoordinate at = coordinate_of(shape, session_.rank());
    EXPECT_EQ(mesh.coordinate(), at);
    for (Axis axis : kAxes) {
      Communicator& group = mesh.axis(axis);
      EXPECT_EQ(group.size(), shape.extents()[static_cast<std::size_t>(axis)]);
      EXPECT_EQ(group.name(), group_name(axis, at));
      const auto ranks = members(group);
      for (int i = 0; i < group.size(); ++i) {
        const MeshCoordinate other = coordinate_of(shape, ranks[static_cast<std::size_t>(i)]);
        const std::array<int, 4> theirs{other.pp, other.dp, other.cp, other.tp},
            ours{at.pp, at.dp, at.cp, at.tp};
        for (Axis along : kAxes) {
          const auto k = static_cast<std::size_t>(along);
          EXPECT_EQ(theirs[k], along == axis ? i : ours[k]);
        }
      }
    }
  }
}

TEST_F(MeshOfRanks, DataPlaneOrdersDpOutsideCp) {
  if (session_.world_size() != 4) GTEST_SKIP() << "needs 4 ranks";
  Mesh mesh(session_, {.pp = 1, .dp = 2, .cp = 2, .tp = 1});
  EXPECT_EQ(mesh.data_plane().rank(), mesh.coordinate().dp * 2 + mesh.coordinate().cp);
  Mesh with_tp(session_, {.pp = 1, .dp = 2, .cp = 1, .tp = 2});
  EXPECT_EQ(with_tp.data_plane().rank(), with_tp.coordinate().dp);
  EXPECT_EQ(with_tp.data_plane().size(), 2);
  EXPECT_EQ(with_tp.data_plane().name(), plane_name(with_tp.coordinate()));
}

TEST_F(MeshOfRanks, MeshesThatDoNotFitAreRefused) {
  EXPECT_THROW(Mesh(session_, {.pp = 1, .dp = 0, .cp = 1, .tp = session_.world_size() + 1}), ConfigError);
}

TEST_F(MeshOfRanks, MpiKnowsTheNameAndReturnsErrors) {
  Mesh mesh(session_, {});
  const std::uintptr_t handle = native_handle(mesh.data_plane());
  MPI_Comm raw = MPI_COMM_NULL;
  std::memcpy(&raw, &handle, sizeof raw);
  char name[MPI_MAX_OBJECT_NAME] = {};
  int length = 0;
  ASSERT_EQ(MPI_Comm_get_name(raw, name, &length), MPI_SUCCESS);
  EXPECT_STREQ(name, "dp.cp[pp=0,tp=0]");
  int value = 0;
  EXPECT_NE(MPI_Send(&value, 1, MPI_INT, session_.world_size() + 3, 0, raw), MPI_SUCCESS);
}

TEST_F(MeshOfRanks, ADuplicateWorksBesideTheWorld) {
  Mesh mesh(session_, {});
  const auto copy = mesh.duplicate(mesh.world(), "saves");
  EXPECT_EQ(copy->name(), "saves");
  EXPECT_EQ(copy->rank(), session_.rank());
  EXPECT_EQ(copy->max(session_.rank()), session_.world_size() - 1);
  EXPECT_NE(native_handle(*copy), native_handle(mesh.world()));
}

TEST_F(MeshOfRanks, RanksOfOneNodeShareMemoryUnlessMessagesAreAskedFor) {
  const auto shares = [](Mesh& mesh) {
    return dynamic_cast<MpiCommunicator&>(mesh.world()).uses_shared_memory();
  };
  Mesh mesh(session_, {});
  EXPECT_EQ(shares(mesh), session_.world_size() > 1);

  setenv("CARTAN_COMM", "messages", 1);
  Session by_messages(argc_, argv_);
  Mesh other(by_messages, {});
  EXPECT_FALSE(shares(other));
  EXPECT_EQ(other.world().max(session_.rank()), session_.world_size() - 1);

  for (const char* wrong : {"pigeons", "nodes:", "nodes:0", "nodes:-1", "nodes:2x"}) {
    setenv("CARTAN_COMM", wrong, 1);
    EXPECT_THROW(Session(argc_, argv_), ConfigError) << wrong;
  }
  unsetenv("CARTAN_COMM");
}

TEST_F(MeshOfRanks, GroupsThatSpanPretendedNodesWorkInsideNodesFirst) {
  setenv("CARTAN_COMM", "nodes:2", 1);
  Session session(argc_, argv_);
  unsetenv("CARTAN_COMM");
  const bool many = session.world_size() == 4;
  Mesh mesh(session, {.pp = 1, .dp = many ? 2 : 1, .cp = 1, .tp = many ? 2 : session.world_size()});
  const auto of = [](Communicator& comm) -> MpiCommunicator& { return dynamic_cast<MpiCommunicator&>(comm); };
  EXPECT_EQ(of(mesh.world()).uses_nodes(), many);
  EXPECT_FALSE(of(mesh.axis(Axis::dp)).uses_nodes()) << "one rank of each node";
  EXPECT_FALSE(of(mesh.axis(Axis::dp)).uses_shared_memory());
  EXPECT_EQ(of(mesh.axis(Axis::tp)).uses_shared_memory(), session.world_size() > 1);
}

TEST(Library, NamesItself) {
  const std::string version = Session::library_version();
  EXPECT_FALSE(version.empty());
  EXPECT_EQ(version.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace cartan::comm
