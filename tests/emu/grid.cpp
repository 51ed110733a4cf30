#include "grid.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "access_patterns.hpp"
#include "checker.hpp"
#include "device.h"
#include "fibers.hpp"
#include "settings.hpp"

thread_local constinit uint3 threadIdx{}, blockIdx{};
thread_local constinit dim3 blockDim{}, gridDim{};

namespace emu {

thread_local unsigned current_block = 0;

namespace {

std::vector<unsigned> numbers_in_order(unsigned count, std::mt19937& random) {
  std::vector<unsigned> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0u);
  if (policy.order == Order::reverse) std::reverse(numbers.begin(), numbers.end());
  if (policy.order == Order::shuffled) std::shuffle(numbers.begin(), numbers.end(), random);
  return numbers;
}

}  // namespace

std::string run_grid(dim3 grid, dim3 threads, std::size_t shared_bytes, const Body& body) {
  std::mt19937 random(policy.seed);
  Block& block = prepare_this_block();
  block.prepare(body, threads, shared_bytes);
  blockDim = threads;
  gridDim = grid;
  std::vector<unsigned> order = numbers_in_order(threads.x * threads.y * threads.z, random);
  for (const unsigned number : numbers_in_order(grid.x * grid.y * grid.z, random)) {
    current_block = number;
    blockIdx = {number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y};
    forget_shared_memory();
    if (policy.order == Order::shuffled) std::shuffle(order.begin(), order.end(), random);
    if (!block.run(order)) return block.report();
    if (config.profile) fold_patterns(body.fn);
  }
  return "";
}

}  // namespace emu
