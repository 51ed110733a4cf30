// The ways in which a communicator moves data; every test of a verb runs each of them: over MPI on the cpu
// device, over NCCL on the cuda device (support/test_device.hpp).
#pragma once

#include <gtest/gtest.h>
#include <mpi.h>

#include <functional>
#include <memory>
#include <ostream>

#include "comm/mpi/mpi_communicator.hpp"
#include "comm/nccl/nccl_groups.hpp"
#include "support/test_device.hpp"

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
  nccl,          ///< on GPUs, operands in exchange memory
  cut_nccl,      ///< so too, operands elsewhere, and room for so little that a reduction needs many rounds
};

inline std::ostream& operator<<(std::ostream& out, Way way) {
  static constexpr const char* names[] = {"exchange",   "staged",    "mixed",      "messages", "cut_messages",
                                          "nodes_of_2", "cut_nodes", "nodes_of_3", "nccl",     "cut_nccl"};
  return out << names[static_cast<std::size_t>(way)];
}

inline bool is_on_gpu(Way way) { return way == Way::nccl || way == Way::cut_nccl; }

/// Of the device under test.
inline std::vector<Way> ways() {
  if (!testing::on_cpu()) return {Way::nccl, Way::cut_nccl};
  return {Way::exchange,     Way::staged,     Way::mixed,     Way::messages,
          Way::cut_messages, Way::nodes_of_2, Way::cut_nodes, Way::nodes_of_3};
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

/// The one of a test program: a GPU's scratch memory takes longer than a test.
inline device::Device& test_device() {
  static const auto device = testing::make_test_device(1);
  return *device;
}

/// A communicator over all ranks that moves data in one way.
class EachWay : public ::testing::TestWithParam<Way> {
 protected:
  EachWay() : comm_ptr_(make("test")) {
    if (is_on_gpu(GetParam()))  // which brings the room for reductions
      memory_.push_back(
          comm_.allocate_exchange(test_device(), 4, device::MemoryKind::communication, "some memory"));
  }

  std::unique_ptr<Communicator> make(const std::string& name) {
    const Way way = GetParam();
    CommHandle raw = duplicate(MPI_COMM_WORLD, name);
    if (is_on_gpu(way)) return nccl().make(std::move(raw), name, options_of(way), NcclUse::all);
    return std::make_unique<MpiCommunicator>(std::move(raw), name, options_of(way));
  }

  /// Memory of the device under test for an operand, and the host's view of it.
  class Operand {
   public:
    Operand(float* data, std::size_t count, std::span<float> host)
        : data_(data), count_(count), host_(host) {}
    float* data() const { return data_; }
    std::size_t size() const { return count_; }
    float& operator[](std::size_t i) const { return host_[i]; }
    std::span<float> host() const { return host_; }
    Operand subspan(std::size_t begin, std::size_t count) const {
      return {data_ + begin, count, host_.subspan(begin, count)};
    }
    ByteView bytes() const { return std::as_writable_bytes(std::span(data_, count_)); }
    std::vector<float> values() const { return {host_.begin(), host_.end()}; }

   private:
    float* data_;
    std::size_t count_;
    std::span<float> host_;
  };

  /// Zeroed memory for an operand.
  Operand operand(std::size_t count) {
    const Way way = GetParam();
    const bool mixed = way == Way::mixed || way == Way::nodes_of_3;
    const bool exchange = mixed || way == Way::exchange || way == Way::nodes_of_2 || way == Way::nccl;
    const std::size_t size_bytes = count * sizeof(float);
    if (exchange)
      memory_.push_back(
          comm_.allocate_exchange(test_device(), size_bytes, device::MemoryKind::workspace, "operand"));
    const bool is_there = exchange && (!mixed || comm_.rank() % 2 == 0);
    if (!is_there && is_on_gpu(way))
      memory_.push_back(test_device().allocate(size_bytes, device::MemoryKind::workspace, "operand"));
    if (is_there && !is_on_gpu(way)) {
      auto* const data = memory_.back().as<float>();
      return {data, count, {data, count}};
    }
    vectors_.push_back(std::make_unique<std::vector<float>>(count));
    const std::span<float> host = *vectors_.back();
    float* const data = is_on_gpu(way) ? memory_.back().as<float>() : host.data();
    operands_.emplace_back(data, count, host);
    return operands_.back();
  }

  /// Runs calls with what the host sees of the operands, waits, and lets the host see what came out.
  void run(const std::function<device::Event()>& call) {
    if (is_on_gpu(GetParam()))
      for (const Operand& operand : operands_)
        test_device().copy_in(operand.data(), operand.host().data(), operand.host().size_bytes(), *stream_);
    call().wait();
    if (!is_on_gpu(GetParam())) return;
    for (const Operand& operand : operands_)
      test_device().copy_out(operand.host().data(), operand.data(), operand.host().size_bytes(), *stream_);
    stream_->synchronize();
  }

  /// Beside the test's own one.
  static std::unique_ptr<device::Stream> make_stream(const std::string& name) {
    return test_device().make_stream(name);
  }

 private:
  NcclGroups& nccl() {
    if (nccl_ == nullptr) {
      NcclOptions options;
      options.room_bytes = GetParam() == Way::cut_nccl ? 16384 : 1 << 20;
      nccl_ = make_nccl_groups(options);
    }
    return *nccl_;
  }

  std::unique_ptr<NcclGroups> nccl_;
  std::unique_ptr<Communicator> comm_ptr_;
  std::vector<device::Buffer> memory_;
  std::vector<std::unique_ptr<std::vector<float>>> vectors_;
  std::vector<Operand> operands_;

 protected:
  Communicator& comm_ = *comm_ptr_;
  std::unique_ptr<device::Stream> stream_ =
      is_on_gpu(GetParam()) ? make_stream("test") : device::make_inline_stream("test");
};

inline std::string name_of_way(const ::testing::TestParamInfo<Way>& info) {
  return ::testing::PrintToString(info.param);
}

#define CARTAN_EACH_WAY(Suite) INSTANTIATE_TEST_SUITE_P(Ways, Suite, ::testing::ValuesIn(ways()), name_of_way)

}  // namespace cartan::comm
