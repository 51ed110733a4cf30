// The ways in which an MPI communicator moves data; every test of a verb runs each of them.
#pragma once

#include <gtest/gtest.h>
#include <mpi.h>

#include <memory>
#include <ostream>

#include "comm/mpi/mpi_communicator.hpp"

namespace cartan::comm {

enum class Way {
  exchange,      ///< operands in exchange memory, read where they lie
  staged,        ///< operands elsewhere, through a staging area so small that many rounds are needed
  mixed,         ///< in exchange memory on even ranks only
  messages,      ///< as between nodes
  cut_messages,  ///< messages so short that payloads are cut, and a reduction in many pieces
  nodes_of_2,    ///< inside pairs first, then across; operands in exchange memory
  cut_nodes,     ///< so too, with operands elsewhere, short messages and many pieces
  nodes_of_3,    ///< three ranks a node, operands in exchange memory on even ranks only
};

inline std::ostream& operator<<(std::ostream& out, Way way) {
  static constexpr const char* names[] = {"exchange",     "staged",     "mixed",     "messages",
                                          "cut_messages", "nodes_of_2", "cut_nodes", "nodes_of_3"};
  return out << names[static_cast<std::size_t>(way)];
}

inline MpiOptions options_of(Way way) {
  MpiOptions options;
  options.spin = false;
  options.force_messages = way == Way::messages || way == Way::cut_messages;
  const bool cut = way == Way::cut_messages || way == Way::cut_nodes;
  if (cut) options.max_message_bytes = 1000;
  if (cut) options.window_bytes = 1;
  if (way == Way::staged || way == Way::mixed || way == Way::cut_nodes) options.staging_bytes = 4096;
  if (way == Way::nodes_of_2 || way == Way::cut_nodes) options.ranks_per_node = 2;
  if (way == Way::nodes_of_3) options.ranks_per_node = 3;
  return options;
}

/// A communicator over all ranks that moves data in one way.
class EachWay : public testing::TestWithParam<Way> {
 protected:
  EachWay() : comm_(duplicate(MPI_COMM_WORLD, "test"), "test", options_of(GetParam())) {}

  /// Zeroed memory for an operand.
  std::span<float> operand(std::size_t count) {
    const Way way = GetParam();
    const bool mixed = way == Way::mixed || way == Way::nodes_of_3;
    const bool exchange = mixed || way == Way::exchange || way == Way::nodes_of_2;
    if (exchange) {
      buffers_.push_back(
          comm_.allocate_exchange(*device_, count * sizeof(float), device::MemoryKind::workspace, "operand"));
    }
    if (exchange && (!mixed || comm_.rank() % 2 == 0)) return {buffers_.back().as<float>(), count};
    vectors_.push_back(std::make_unique<std::vector<float>>(count));
    return *vectors_.back();
  }

  std::unique_ptr<device::Device> device_ = device::make_device(device::DeviceKind::cpu, {.threads = 1});
  MpiCommunicator comm_;
  std::unique_ptr<device::HostStream> stream_ = device::make_inline_stream("test");

 private:
  std::vector<device::Buffer> buffers_;
  std::vector<std::unique_ptr<std::vector<float>>> vectors_;
};

inline std::string name_of_way(const testing::TestParamInfo<Way>& info) {
  return testing::PrintToString(info.param);
}

#define CARTAN_EACH_WAY(Suite)                                                                  \
  INSTANTIATE_TEST_SUITE_P(                                                                     \
      Ways, Suite,                                                                              \
      testing::Values(Way::exchange, Way::staged, Way::mixed, Way::messages, Way::cut_messages, \
                      Way::nodes_of_2, Way::cut_nodes, Way::nodes_of_3),                        \
      name_of_way)

}  // namespace cartan::comm
