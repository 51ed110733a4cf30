// Lets stages that wait for each other go on as far as they can, in time linear in their actions.
#pragma once

#include <cstddef>
#include <numeric>
#include <vector>

namespace cartan::pipeline {

/// `step(stage)` does the next thing on the list of the stage and returns true, or returns false if the stage
/// must wait for one of its neighbours or is done. Returns when no stage can go on.
template <class Step>
void run_until_stuck(std::size_t stages, Step&& step) {
  std::vector<std::size_t> ready(stages);
  std::iota(ready.rbegin(), ready.rend(), std::size_t{0});
  std::vector<char> is_ready(stages, 1);
  while (!ready.empty()) {
    const std::size_t stage = ready.back();
    ready.pop_back();
    is_ready[stage] = 0;
    if (!step(stage)) continue;
    while (step(stage)) {
    }
    for (const std::size_t neighbour : {(stage + 1) % stages, (stage + stages - 1) % stages}) {
      if (is_ready[neighbour]) continue;
      is_ready[neighbour] = 1;
      ready.push_back(neighbour);
    }
  }
}

}  // namespace cartan::pipeline
