#include "train/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "cartan/core/log.hpp"
#include "cartan/core/text.hpp"

namespace cartan::train {
namespace {
constexpr Index kBarWidth = 24;
}

bool wants_bar(const std::string& mode) {
  return mode == "always" || (mode == "auto" && ::isatty(STDERR_FILENO) == 1);
}

Progress::Progress(Index first_step, Index total_steps, Index log_every, bool bar)
    : first_step_(first_step),
      total_steps_(total_steps),
      log_every_(log_every),
      bar_(bar),
      start_(Clock::now()) {}

std::string Progress::eta(Index step) const {
  const double elapsed = seconds_since(start_);
  const double each = elapsed / static_cast<double>(step - first_step_ + 1);
  return format_duration(each * static_cast<double>(total_steps_ - step));
}

void Progress::draw(const StepReport& r) {
  const Index filled = kBarWidth * r.step / std::max<Index>(total_steps_, 1);
  const std::string bar = std::string(static_cast<std::size_t>(filled), '#') +
                          std::string(static_cast<std::size_t>(kBarWidth - filled), '.');
  fmt::print(stderr, "\r\033[K[{}] {}/{}  loss {:.4f}  grad {:.3f}  lr {:.2e}  {:.1f} ktok/s  ETA {}", bar,
             r.step, total_steps_, r.loss, r.grad_norm, r.lr, r.tokens_per_s / 1e3, eta(r.step));
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::step(const StepReport& r) {
  if (bar_) {
    draw(r);
    return;
  }
  if (r.step % log_every_ != 0 && r.step != total_steps_) return;
  log::info("train",
            "step {} | loss {:.5f} | grad_norm {:.4f} | lr {:.3e} | {:.2f} ktok/s | mfu {:.1f} % | mem {} | "
            "{:.3f} s | "
            "ETA {}",
            r.step, r.loss, r.grad_norm, r.lr, r.tokens_per_s / 1e3, 100 * r.mfu, format_bytes(r.memory_peak),
            r.step_s, eta(r.step));
}

void Progress::say(const std::string& text) {
  if (drawn_) fmt::print(stderr, "\r\033[K");
  drawn_ = false;
  log::info("train", "{}", text);
}

void Progress::finish() {
  if (drawn_) fmt::print(stderr, "\n");
  drawn_ = false;
}

}  // namespace cartan::train
