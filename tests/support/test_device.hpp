// The device that a test runs on: cpu, or what the environment variable CARTAN_TEST_DEVICE says.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cartan/device/device.hpp"

namespace cartan::testing {

inline std::string test_device_name() {
  const char* const name = std::getenv("CARTAN_TEST_DEVICE");
  return name == nullptr ? "cpu" : name;
}

inline device::DeviceKind test_device_kind() { return device::device_kind_from_name(test_device_name()); }

inline bool on_cpu() { return test_device_name() == "cpu"; }

/// Of a number that Open MPI's launcher gives to each rank; `otherwise` without launcher.
inline int launcher_number(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}
inline int local_ranks() { return launcher_number("OMPI_COMM_WORLD_LOCAL_SIZE", 1); }

inline std::unique_ptr<device::Device> make_test_device(int threads) {
  device::DeviceOptions options;
  options.threads = threads;
  options.local_rank = launcher_number("OMPI_COMM_WORLD_LOCAL_RANK", 0);
  options.local_ranks = local_ranks();
  const char* const graphs = std::getenv("CARTAN_TEST_GRAPHS");
  options.graphs = graphs == nullptr || std::string_view(graphs) != "0";
  return device::make_device(test_device_kind(), options);
}

/// Numbers of a device's memory, and back.
template <class T>
std::vector<T> download(device::Device& device, const void* data, std::size_t count) {
  std::vector<T> host(count);
  device.copy_out(host.data(), data, count * sizeof(T), device.compute_stream());
  return host;
}
template <class T>
void upload(device::Device& device, void* data, const std::vector<T>& host) {
  device.copy_in(data, host.data(), host.size() * sizeof(T), device.compute_stream());
  device.compute_stream().synchronize();  // tests use it on any stream
}

}  // namespace cartan::testing
