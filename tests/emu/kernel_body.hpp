// A kernel with its parameters, and its launch: what cudaLaunchKernelEx is in the emulator. A macro of the
// language header puts emu::launch in its place, because only a template knows the types of the parameters.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

namespace emu {

inline constexpr std::size_t kMostParameterBytes = 4096;

/// A copy of the parameters, how to call the kernel with them, and how the driver lays them out.
struct Body {
  void (*invoke)(const void* fn, const void* args);
  /// Returns the number of bytes.
  unsigned (*lay_out)(const void* args, unsigned char* to);
  const void* fn;
  unsigned bytes;
  alignas(16) unsigned char args[kMostParameterBytes];
};

cudaError_t enqueue_kernel(const cudaLaunchConfig_t* grid, const Body& body);

template <class... Parameters>
void invoke_kernel(const void* fn, const void* args) {
  using Args = std::tuple<std::decay_t<Parameters>...>;
  const auto kernel = reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(fn));
  std::apply(kernel, *static_cast<const Args*>(args));
}

/// One after another, each at a multiple of its alignment.
template <class... Parameters>
unsigned lay_out_parameters(const void* args, unsigned char* to) {
  std::size_t end = 0;
  const auto put = [&](const auto& value) {
    constexpr std::size_t kAlignment = alignof(decltype(value));
    const std::size_t at = (end + kAlignment - 1) / kAlignment * kAlignment;
    std::memcpy(to + at, &value, sizeof value);
    end = at + sizeof value;
  };
  using Args = std::tuple<std::decay_t<Parameters>...>;
  std::apply([&](const auto&... values) { (put(values), ...); }, *static_cast<const Args*>(args));
  return static_cast<unsigned>(end);
}

template <class... Parameters, class... Arguments>
cudaError_t launch(const cudaLaunchConfig_t* grid, void (*kernel)(Parameters...), Arguments&&... arguments) {
  using Args = std::tuple<std::decay_t<Parameters>...>;
  static_assert((std::is_trivially_copyable_v<std::decay_t<Parameters>> && ...));
  static_assert(sizeof(Args) <= kMostParameterBytes, "parameters of a kernel have 4096 bytes at most");
  Body body{invoke_kernel<Parameters...>,
            lay_out_parameters<Parameters...>,
            reinterpret_cast<const void*>(kernel),
            sizeof(Args),
            {}};
  new (body.args) Args(static_cast<std::decay_t<Parameters>>(std::forward<Arguments>(arguments))...);
  return enqueue_kernel(grid, body);
}

}  // namespace emu
