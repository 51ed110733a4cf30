// Idle time against the formulas, and the drawing.
#include "cartan/pipeline/simulate.hpp"

#include <gtest/gtest.h>

namespace cartan::pipeline {
namespace {

Timeline run(std::string_view kind, int stages, Index micro_batches, int chunks, const Costs& costs = {}) {
  return simulate(make_schedule(kind, stages, micro_batches, chunks), costs);
}

TEST(IdleShare, IsThatOfThePapers) {
  EXPECT_NEAR(run("1f1b", 4, 8, 1).idle_share, 0.273, 5e-4);
  EXPECT_NEAR(run("interleaved", 4, 8, 2).idle_share, 0.158, 5e-4);
  EXPECT_NEAR(run("zero-bubble", 4, 8, 1).idle_share, 0.111, 5e-4);
  EXPECT_NEAR(run("1f1b", 8, 8, 1).idle_share, 0.467, 5e-4);
  EXPECT_NEAR(run("interleaved", 8, 8, 2).idle_share, 0.304, 5e-4);
  EXPECT_NEAR(run("zero-bubble", 8, 8, 1).idle_share, 0.226, 5e-4);
  EXPECT_NEAR(run("1f1b", 8, 32, 1).idle_share, 0.179, 5e-4);
  EXPECT_NEAR(run("interleaved", 8, 32, 2).idle_share, 0.099, 5e-4);
  EXPECT_NEAR(run("zero-bubble", 8, 32, 1).idle_share, 0.068, 5e-4);
}

TEST(IdleShare, FollowsTheFormulaForEverySize) {
  for (int p = 1; p <= 16; ++p) {
    for (const int m : {1, 2, 3, p - 1, p, p + 1, 2 * p - 1, 2 * p, 3 * p + 2, 40}) {
      if (m < 1) continue;
      const double ramp = p - 1;
      const auto share = [&](double work) { return ramp / (work + ramp); };
      EXPECT_NEAR(run("gpipe", p, m, 1).idle_share, share(m), 1e-12) << p << " " << m;
      EXPECT_NEAR(run("1f1b", p, m, 1).idle_share, share(m), 1e-12) << p << " " << m;
      if (m >= p) {
        EXPECT_NEAR(run("zero-bubble", p, m, 1).idle_share, share(3 * m), 1e-12) << p << " " << m;
        Problems problems;
        check("interleaved", p, m, 1, problems);
        for (int v = 1; problems.empty() && v <= (p > 1 ? 4 : 1); ++v)
          EXPECT_NEAR(run("interleaved", p, m, v).idle_share, share(v * m), 1e-12)
              << p << " " << m << " " << v;
      } else {
        EXPECT_LE(run("zero-bubble", p, m, 1).idle_share, share(m)) << p << " " << m;
      }
    }
  }
}

TEST(Simulate, BeginsNothingBeforeItsInputIsThere) {
  const Costs costs{1, 1.5, 0.75, 0.25};
  for (const std::string& kind : schedule_kinds()) {
    const Schedule schedule = make_schedule(kind, 3, 5, kind == "interleaved" ? 2 : 1);
    const Timeline timeline = simulate(schedule, costs);
    const auto end_of = [&](int part, Index micro_batch, bool is_forward) {
      for (const Timeline::Span& span : timeline.stages[static_cast<std::size_t>(part % 3)]) {
        const bool fits = is_forward ? span.action.kind == ActionKind::forward
                                     : span.action.kind == ActionKind::backward ||
                                           span.action.kind == ActionKind::backward_input;
        if (fits && span.action.micro_batch == micro_batch && span.action.chunk == part / 3) return span.end;
      }
      throw std::logic_error("no such action");
    };
    const int last = 3 * schedule.chunks - 1;
    double busy = 0;
    for (std::size_t stage = 0; stage < 3; ++stage) {
      double before = 0;
      for (const Timeline::Span& span : timeline.stages[stage]) {
        const int part = part_of(schedule, stage, span.action.chunk);
        EXPECT_GE(span.begin, before);
        if (span.action.kind == ActionKind::forward && part > 0) {
          EXPECT_GE(span.begin, end_of(part - 1, span.action.micro_batch, true) + costs.transfer);
        } else if (span.action.kind != ActionKind::forward && part < last) {
          EXPECT_GE(span.begin, end_of(part + 1, span.action.micro_batch, false) + costs.transfer);
        }
        before = span.end;
        busy += span.end - span.begin;
      }
    }
    EXPECT_NEAR(busy, 3 * 5 * 3.25, 1e-12);
    EXPECT_NEAR(timeline.idle_share, 1 - busy / (3 * timeline.makespan), 1e-12);
  }
}

TEST(Simulate, CountsTransfersAndUnequalLengths) {
  // One micro-batch walks down and up: 2 (f + b + w) and two transfers.
  const Timeline timeline = run("1f1b", 2, 1, 1, {1, 2, 4, 0.5});
  EXPECT_DOUBLE_EQ(timeline.makespan, 15);
  EXPECT_DOUBLE_EQ(timeline.idle_share, 1 - 14.0 / 30);
  // Apart, only what the first stage waits for counts: wgrad of the last stage runs beside its dgrad.
  EXPECT_DOUBLE_EQ(run("zero-bubble", 2, 1, 1, {1, 2, 4, 0.5}).makespan, 11);
  EXPECT_DOUBLE_EQ(run("1f1b", 2, 3, 1, {0, 0, 0, 0}).idle_share, 0);
}

TEST(Simulate, RefusesAScheduleThatDoesNotEnd) {
  Schedule schedule = make_schedule("1f1b", 2, 2, 1);
  schedule.stages[0].erase(schedule.stages[0].begin());
  EXPECT_THROW(simulate(schedule, {}), InternalError);
}

TEST(Draw, ShowsARowForEachStage) {
  EXPECT_EQ(draw(run("1f1b", 2, 2, 1)),
            "stage 0  F0 F1 .. .. B0 -- .. B1 --\n"
            "stage 1  .. F0 B0 -- F1 B1 -- .. ..\n");
  EXPECT_EQ(draw(run("zero-bubble", 2, 3, 1)),
            "stage 0  F0 F1 .. B0 W0 F2 B1 W1 B2 W2\n"
            "stage 1  .. F0 B0 F1 B1 W0 F2 B2 W1 W2\n");
  EXPECT_EQ(draw(run("interleaved", 2, 2, 2)),
            "stage 0  F0.0 F1.0 F0.1 F1.1 .... .... B0.1 ---- .... B1.1 ---- B0.0 ---- B1.0 ----\n"
            "stage 1  .... F0.0 F1.0 F0.1 B0.1 ---- F1.1 B1.1 ---- B0.0 ---- B1.0 ---- .... ....\n");
}

TEST(Draw, BreaksLongTimelinesIntoBlocks) {
  const std::string text = draw(run("1f1b", 4, 12, 1), 60);
  std::size_t begin = 0, rows = 0, blanks = 0;
  while (begin < text.size()) {
    const std::size_t end = text.find('\n', begin);
    EXPECT_LE(end - begin, 60u);
    rows += text.substr(begin, end - begin).starts_with("stage ");
    blanks += end == begin;
    begin = end + 1;
  }
  // 45 slots, of which 12 fit in a line.
  EXPECT_EQ(rows, 16u);
  EXPECT_EQ(blanks, 3u);
}

}  // namespace
}  // namespace cartan::pipeline
