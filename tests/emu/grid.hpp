// Runs grids of emulated kernels, block after block.
#pragma once

#include <cstddef>
#include <string>

#include "kernel_body.hpp"

namespace emu {

/// Blocks and their threads run in the order of `policy`. Returns "" or why the grid came to no end.
std::string run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const Body& body);

/// The number of the block that runs in its grid.
extern thread_local unsigned current_block;

}  // namespace emu
