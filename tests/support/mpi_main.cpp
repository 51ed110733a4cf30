// Runs GoogleTest on every rank. Rank 0 reports; another rank speaks only when one of its checks fails.
#include <gtest/gtest.h>
#include <mpi.h>

int main(int argc, char** argv) {
  int provided = 0, rank = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  testing::InitGoogleTest(&argc, argv);
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) {
    class FailuresOnly : public testing::EmptyTestEventListener {
      void OnTestPartResult(const testing::TestPartResult& result) override {
        if (!result.failed()) return;
        int here = 0;
        MPI_Comm_rank(MPI_COMM_WORLD, &here);
        std::fprintf(stderr, "rank %d: %s:%d: %s\n", here, result.file_name(), result.line_number(),
                     result.message());
      }
    };
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOnly);
  }
  int mine = RUN_ALL_TESTS(), worst = 0;
  MPI_Allreduce(&mine, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return worst;
}
