#include "cartan/comm/node_memory.hpp"

#include <atomic>

#include "comm/mpi/mpi_group.hpp"
#include "comm/mpi/shared_window.hpp"

namespace cartan::comm {
namespace {

class WindowMemory final : public NodeMemory {
 public:
  WindowMemory(MpiGroup& comm, std::size_t size_bytes, std::string_view label)
      : comm_(comm), window_(comm.raw(), comm.name(), size_bytes, label) {}

  std::byte* part(int rank) const override { return window_.base(rank); }
  void meet() override {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    comm_.barrier();
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }

 private:
  MpiGroup& comm_;
  SharedWindow window_;
};

}  // namespace

std::unique_ptr<NodeMemory> make_node_memory(Communicator& comm, std::size_t size_bytes,
                                             std::string_view label) {
  auto* mpi = dynamic_cast<MpiGroup*>(&comm);
  if (mpi == nullptr || !mpi->shares_memory()) return nullptr;
  try {
    return std::make_unique<WindowMemory>(*mpi, size_bytes, label);
  } catch (const EnvironmentError&) {  // no room: on every rank
    return nullptr;
  }
}

}  // namespace cartan::comm
