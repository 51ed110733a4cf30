// What a user sees when ranks fail under mpirun: one message, its exit code, within seconds.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace cartan::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Outcome {
  int code = 0;
  std::vector<std::string> messages;  // lines of stderr that begin with "cartan: "
  double seconds = 0;
};

Outcome run(int ranks, const std::string& words) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string command = std::string(CARTAN_MPIRUN) + " -n " + std::to_string(ranks) + " " +
                              CARTAN_FAILING_PROGRAM + " " + words + " 2>&1";
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> line;
  while (std::fgets(line.data(), line.size(), pipe)) {
    std::string text = line.data();
    if (text.ends_with('\n')) text.pop_back();
    if (text.starts_with("cartan: ")) outcome.messages.push_back(text);
  }
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return outcome;
}

TEST(Failure, OfOneRankIsSaidByThatRankWhileOthersWait) {
  for (const char* rank : {"0", "2"}) {
    const Outcome outcome = run(3, std::string("fail --who ") + rank + " --how data");
    EXPECT_EQ(outcome.code, 65);
    EXPECT_THAT(outcome.messages,
                ElementsAre(std::string("cartan: rank ") + rank + ": corpus.idx: truncated"));
    EXPECT_LT(outcome.seconds, 20);
  }
}

TEST(Failure, OfAllRanksIsSaidOnce) {
  const Outcome outcome = run(4, "fail --how configuration");
  EXPECT_EQ(outcome.code, 78);
  EXPECT_THAT(outcome.messages, ElementsAre("cartan: batch.global = 3 does not fit"));
}

TEST(Failure, InTheWordsIsSaidOnce) {
  const Outcome outcome = run(4, "fail --hwo data");
  EXPECT_EQ(outcome.code, 64);
  EXPECT_THAT(outcome.messages, ElementsAre("cartan: unknown option --hwo (did you mean --how?)"));
}

TEST(Failure, TheRankThatFailedFirstSpeaksForThoseThatNoticed) {
  const Outcome outcome = run(3, "fail --who 1 --how data --others peer");
  EXPECT_EQ(outcome.code, 65);
  EXPECT_THAT(outcome.messages, ElementsAre("cartan: rank 1: corpus.idx: truncated"));
}

TEST(Failure, OfAnUnexpectedKindHasACodeToo) {
  EXPECT_EQ(run(1, "fail --how memory").code, 71);
  const Outcome outcome = run(1, "fail --how logic");
  EXPECT_EQ(outcome.code, 70);
  EXPECT_THAT(outcome.messages, ElementsAre("cartan: defect in cartan: out of range; please report it"));
}

TEST(Failure, ACrashNamesItsRank) {
  const Outcome outcome = run(2, "fail --who 1 --how crash");
#ifdef CARTAN_SANITIZED
  EXPECT_NE(outcome.code, 0);
#else
  EXPECT_EQ(outcome.code, 70);
  EXPECT_THAT(outcome.messages, ElementsAre(HasSubstr("cartan: rank 1: crashed with SIGABRT")));
#endif
}

}  // namespace
}  // namespace cartan::cli
