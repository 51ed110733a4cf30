// Every task runs once, whoever takes it.
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "device/cpu/context.hpp"

namespace cartan::device::cpu {
namespace {

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (const Index tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
      std::atomic<bool> good_thread{true};
      pool.run(tasks, [&](Index i, int thread) {
        ++runs[static_cast<std::size_t>(i)];
        if (thread < 0 || thread >= threads) good_thread = false;
      });
      for (const auto& count : runs) EXPECT_EQ(count, 1);
      EXPECT_TRUE(good_thread);
    }
  }
}

TEST(ThreadPool, SurvivesManyShortJobs) {
  ThreadPool pool(3);
  std::atomic<Index> sum{0};
  for (int job = 0; job < 5000; ++job) {
    pool.run(1 + job % 5, [&](Index i, int) { sum += i + 1; });
  }
  EXPECT_EQ(sum, 1000 * (1 + 3 + 6 + 10 + 15));
}

TEST(ThreadPool, RethrowsATaskFailureAndGoesOn) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    EXPECT_THROW(pool.run(10,
                          [](Index i, int) {
                            if (i == 4) throw std::runtime_error("task 4");
                          }),
                 std::runtime_error);
    std::atomic<int> count{0};
    pool.run(10, [&](Index, int) { ++count; });
    EXPECT_EQ(count, 10);
  }
}

}  // namespace
}  // namespace cartan::device::cpu
