// What tests may change of the emulated GPUs.
#pragma once

namespace emu {

/// 10 * major + minor.
extern int compute_capability;

}  // namespace emu
