// Saves beside the training: one copy of the slabs in host memory, one thread that writes it.
#include <chrono>
#include <future>
#include <utility>

#include "cartan/core/error.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/log.hpp"
#include "cartan/store/checkpoint.hpp"
#include "cartan/store/slab_copy.hpp"

namespace cartan::store {

struct AsyncWriter::State {
  State(std::unique_ptr<comm::Communicator> comm_, device::Device& device, WriteOptions options_)
      : comm(std::move(comm_)), options(std::move(options_)), slabs(device) {}

  std::unique_ptr<comm::Communicator> comm;
  WriteOptions options;
  SlabCopy slabs;
  std::future<WriteReport> in_flight;
  std::optional<WriteReport> latest;

  bool busy() const { return in_flight.valid(); }
  void finish() { latest = in_flight.get(); }
};

AsyncWriter::AsyncWriter(std::unique_ptr<comm::Communicator> comm, device::Device& device,
                         WriteOptions options)
    : state_(std::make_unique<State>(std::move(comm), device, std::move(options))) {}

AsyncWriter::~AsyncWriter() {
  if (!state_->busy()) return;
  try {
    state_->finish();
  } catch (const std::exception& error) {
    log::warning("store", "{}", error.what());
  }
}

void AsyncWriter::save(const std::filesystem::path& path, Json state, std::vector<TensorInfo> tensors,
                       std::vector<Slab> slabs) {
  wait();
  state_->slabs.copy(slabs, tensors);
  state_->in_flight =
      std::async(std::launch::async, [this_state = state_.get(), path, state = std::move(state),
                                      tensors = std::move(tensors), slabs = std::move(slabs)] {
        return write_checkpoint(path, state, tensors, slabs, *this_state->comm, this_state->options);
      });
}

std::optional<WriteReport> AsyncWriter::wait() {
  if (state_->busy()) state_->finish();
  return state_->latest;
}

std::optional<WriteReport> AsyncWriter::poll() {
  if (!state_->busy() || state_->in_flight.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
    return std::nullopt;
  state_->finish();
  return state_->latest;
}

}  // namespace cartan::store
