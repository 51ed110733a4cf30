#pragma once

#include "cartan/core/canonical_tree.hpp"

namespace cartan::device::cuda {

/// Values of the stack that are not in slots of before, at most at a time.
int new_values(const FoldPlan& plan);

}  // namespace cartan::device::cuda
