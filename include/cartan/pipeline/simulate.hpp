// When each action of a schedule would run, and how long stages would stand idle.
#pragma once

#include <string>
#include <vector>

#include "cartan/pipeline/schedule.hpp"

namespace cartan::pipeline {

/// Time that a stage needs for one micro-batch in all its chunks, in any unit; each chunk takes its share. A
/// `backward` takes input + weight. A transfer begins when its action ends and keeps neither stage busy.
struct Costs {
  double forward = 1, input = 1, weight = 1, transfer = 0;
};

struct Timeline {
  struct Span {
    double begin = 0, end = 0;
    Action action;
  };
  std::vector<std::vector<Span>> stages;
  int chunks = 1;
  double makespan = 0;
  double idle_share = 0;  ///< part of the step that a stage stands idle, averaged over stages
};

/// Every stage runs its actions in order, each as soon as its input is there. Throws InternalError if a stage
/// waits for ever.
Timeline simulate(const Schedule& schedule, const Costs& costs);

/// A row for each stage, a column for each slot of the length of the shortest action, cut into blocks of
/// lines of at most `width` characters:
///   stage 0  F0 F1 .. .. B0 -- B1 --
///   stage 1  .. F0 B0 -- F1 B1 -- ..
/// "F2.1" is the forward of micro-batch 2, chunk 1.
std::string draw(const Timeline& timeline, std::size_t width = 110);

}  // namespace cartan::pipeline
