// What the stand-ins share: settings, findings, the order of operations, queues, memory; and what the access
// checker (check.cpp) does for operations that are not kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "clocks.hpp"
#include "errors.hpp"
#include "executor.hpp"
#include "findings.hpp"
#include "memory.hpp"
#include "settings.hpp"

namespace emu {

/// The running operation reads or writes these bytes of device memory.
void touch(const void* p, std::size_t n, bool write);
/// What the checker knows of bytes of device memory: 0 not allocated, 1 allocated, 2 written.
void set_state(const void* p, std::size_t n, std::uint8_t state);
/// The name of a function, or the source line of an address in it.
std::string symbol(const void* code, bool line = false);
/// Findings of a place are reported once; from now on again.
void forget_reported();

void print_profile();
void profile_block_end();

}  // namespace emu
