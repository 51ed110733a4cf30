// What a person sees of the steps: a line each in a log, a bar on a terminal.
#pragma once

#include <string>

#include "cartan/core/clock.hpp"
#include "cartan/core/types.hpp"

namespace cartan::train {

struct StepReport {
  Index step = 0;
  double loss = 0, grad_norm = 0, lr = 0;
  double tokens_per_s = 0;  ///< all ranks together
  double mfu = 0;           ///< share of the measured matrix-product rate, 0 ... 1
  std::size_t memory_peak = 0;
  double step_s = 0;
};

class Progress {
 public:
  /// `bar`: a bar that is redrawn in place on stderr; else a log line every `log_every` steps.
  Progress(Index first_step, Index total_steps, Index log_every, bool bar);
  void step(const StepReport& report);
  /// A line of its own that does not disturb the bar.
  void say(const std::string& text);
  void finish();

 private:
  std::string eta(Index step) const;
  void draw(const StepReport& report);

  Index first_step_, total_steps_, log_every_;
  bool bar_;
  bool drawn_ = false;
  Clock::time_point start_;
};

/// Whether key run.progress asks for a bar: auto looks at stderr.
bool wants_bar(const std::string& mode);

}  // namespace cartan::train
