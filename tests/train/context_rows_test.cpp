// Which rows a rank of context parallelism computes, and that rows which do not fit together are noticed.
#include "train/context_rows.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "cartan/core/error.hpp"
#include "cartan/core/narrow.hpp"
#include "support/mpi_session.hpp"

namespace cartan::train {
namespace {

data::Batch two_sequences(Index seq) {
  data::Batch batch;
  batch.sequences = 2;
  batch.seq = seq;
  batch.tokens.resize(narrow<std::size_t>(2 * seq));
  std::iota(batch.tokens.begin(), batch.tokens.end(), 0);
  batch.targets = batch.tokens;
  for (Index s = 0; s < 2; ++s)
    for (Index t = 0; t < seq; ++t) {  // the second sequence has two documents
      const Index start = s == 1 && t >= seq / 2 + 1 ? seq / 2 + 1 : 0;
      batch.positions.push_back(narrow<std::int32_t>(t - start));
      batch.document_start.push_back(narrow<std::int32_t>(start));
    }
  return batch;
}

TEST(ContextRows, AreTwoChunksOfEachSequence) {
  const data::Batch whole = two_sequences(12);
  EXPECT_THAT(rows_of_rank(whole, 0, 3).tokens, ::testing::ElementsAre(0, 1, 10, 11, 12, 13, 22, 23));
  EXPECT_THAT(rows_of_rank(whole, 2, 3).tokens, ::testing::ElementsAre(4, 5, 6, 7, 16, 17, 18, 19));
  EXPECT_EQ(rows_of_rank(whole, 1, 3).seq, 4);
}

class CheckedRows : public ::testing::Test {
 protected:
  CheckedRows() : mesh_(testing::session(), {1, 1, testing::session().world_size(), 1}) {}
  comm::Communicator& comm() { return mesh_.axis(comm::Axis::cp); }
  data::Batch rows() { return rows_of_rank(two_sequences(24), comm().rank(), comm().size()); }

  comm::Mesh mesh_;
};

TEST_F(CheckedRows, OfTheSameDataPass) { EXPECT_NO_THROW(check_rows(rows(), comm())); }

TEST_F(CheckedRows, ThatDoNotContinueTheirNeighboursNameTheRank) {
  if (comm().size() == 1) GTEST_SKIP() << "one rank has all rows";
  data::Batch mine = rows();
  if (comm().rank() == 1)
    for (std::int32_t& position : mine.positions) position += 3;
  try {
    check_rows(mine, comm());
    FAIL() << "not noticed";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 1 begins a chunk at position"));
  }
}

}  // namespace
}  // namespace cartan::train
