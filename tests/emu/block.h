#pragma once
#include <string>
#include <vector>
#include "device.h"
#include "settings.hpp"
namespace emu {
struct Stats {
  std::uint64_t threads = 0, switches = 0, barriers = 0, exchanges = 0;
};
extern Stats stats;
extern void (*profile_hook)();
std::string run_grid(dim3 grid, dim3 block, std::size_t smem, const Body&);  // "" or a report
extern thread_local unsigned current_block;
void check_access(const void* p, std::size_t n, bool write);
void block_begin_hook(unsigned block);
bool in_kernel();
struct Range {
  const unsigned char* lo;
  const unsigned char* hi;
};
Range dynamic_smem_range();
Range arena_range();
}  // namespace emu
