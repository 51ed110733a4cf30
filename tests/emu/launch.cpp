#include "launch.hpp"

#include <map>
#include <memory>
#include <string>

#include "errors.hpp"
#include "grid.hpp"
#include "record.hpp"
#include "runtime.h"
#include "symbols.hpp"

namespace emu {
namespace {

constexpr std::size_t kSharedBytesWithoutAsking = 48 << 10;

std::map<const void*, std::size_t>& allowed_shared_bytes = *new std::map<const void*, std::size_t>;

const char* fault_in(const cudaLaunchConfig_t& config, const void* kernel) {
  const dim3 grid = config.gridDim, block = config.blockDim;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return "an empty grid";
  if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) return "a grid that is too large";
  if (block.x == 0 || block.y == 0 || block.z == 0) return "an empty block";
  if (block.z > 64 || std::size_t{block.x} * block.y * block.z > 1024) return "a block that is too large";
  const auto allowed = allowed_shared_bytes.find(kernel);
  const std::size_t most =
      allowed == allowed_shared_bytes.end() ? kSharedBytesWithoutAsking : allowed->second;
  if (config.dynamicSmemBytes > most) return "more dynamic shared memory than cudaFuncSetAttribute allowed";
  return nullptr;
}

}  // namespace

void allow_shared_bytes(const void* kernel, std::size_t bytes) {
  const std::lock_guard lock(big_lock());
  allowed_shared_bytes[kernel] = bytes;
}

cudaError_t enqueue_kernel(const cudaLaunchConfig_t* config, const Body& body) {
  return api("cudaLaunchKernelEx", cudaErrorLaunchOutOfResources, Capturing::allowed, [&] {
    const std::lock_guard lock(big_lock());
    if (const char* const why = fault_in(*config, body.fn)) {
      report("kernel " + kernel_name(body.fn) + ": a launch with " + why);
      return cudaErrorInvalidConfiguration;
    }
    const auto kept = std::make_shared<Body>(body);
    Request request;
    request.name = "kernel";
    request.kernel = body.fn;
    request.start = [grid = config->gridDim, block = config->blockDim,
                     shared_bytes = config->dynamicSmemBytes, kept] {
      return [=] {
        if (is_to_fail("kernel")) {
          set_sticky_error(cudaErrorIllegalAddress);
          return Step::done;
        }
        record_before(grid, block, shared_bytes, *kept);
        const std::string fault = run_grid(grid, block, shared_bytes, *kept);
        record_after();
        if (!fault.empty()) {
          report("kernel " + kernel_name(kept->fn) + ": " + fault);
          set_sticky_error(cudaErrorLaunchFailure);
        }
        return Step::done;
      };
    };
    return enqueue(config->stream, std::move(request));
  });
}

}  // namespace emu
