// Saves beside the training: one copy of the slabs in host memory, one thread that writes it.
#include <chrono>
#include <cstring>
#include <future>
#include <new>
#include <utility>

#include "cartan/core/error.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/log.hpp"
#include "cartan/store/checkpoint.hpp"

namespace cartan::store {
namespace {

constexpr std::align_val_t kAlignment{64};

device::Buffer allocate_host(std::size_t bytes, device::MemoryLedger& ledger) {
  return {::operator new(bytes, kAlignment), bytes, device::MemoryKind::io, ledger,
          [](void* data) { ::operator delete(data, kAlignment); }};
}

}  // namespace

struct AsyncWriter::State {
  std::unique_ptr<comm::Communicator> comm;
  device::Device* device;
  WriteOptions options;
  device::Buffer buffer;
  std::future<WriteReport> in_flight;
  std::optional<WriteReport> latest;

  bool busy() const { return in_flight.valid(); }
  void finish() { latest = in_flight.get(); }

  /// Points the slabs at copies of their data.
  void copy(std::vector<Slab>& slabs, const std::vector<TensorInfo>& tensors) {
    std::size_t bytes = 0;
    for (const Slab& slab : slabs) bytes += bytes_of(slab, tensors);
    if (buffer.size_bytes() < bytes) {
      buffer.reset();  // before the new one is made: never two
      buffer = allocate_host(bytes, device->ledger());
    }
    auto* next = buffer.as<std::byte>();
    for (Slab& slab : slabs) {
      const std::size_t size = bytes_of(slab, tensors);
      if (size == 0) continue;
      std::memcpy(next, slab.data, size);
      slab.data = next;
      next += size;
    }
  }

  static std::size_t bytes_of(const Slab& slab, const std::vector<TensorInfo>& tensors) {
    return static_cast<std::size_t>(slab.count) * size_of(tensors.at(slab.tensor).dtype);
  }
};

AsyncWriter::AsyncWriter(std::unique_ptr<comm::Communicator> comm, device::Device& device,
                         WriteOptions options)
    : state_(std::make_unique<State>()) {
  state_->comm = std::move(comm);
  state_->device = &device;
  state_->options = std::move(options);
}

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
  state_->copy(slabs, tensors);
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
