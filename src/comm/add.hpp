// The loop in which reductions spend their time, with the widest vectors that the CPU has.
#pragma once

#include "cartan/core/types.hpp"

namespace cartan::comm {

/// out[0 ... count) = a + b. `out` may be a or b. Elementwise, so the vectors' width does not show in the
/// bits.
void add(const float* a, const float* b, float* out, Index count);

}  // namespace cartan::comm
