// The data plane of the MPI communicator, as tasks on host streams.
#include "comm/mpi/mpi_communicator.hpp"

#include <cstring>

#include "comm/mpi/tags.hpp"
#include "comm/traffic.hpp"

namespace cartan::comm {
namespace {

device::HostStream& as_host(device::Stream& stream, const std::string& name) {
  auto* host = dynamic_cast<device::HostStream*>(&stream);
  if (host == nullptr) {
    throw InternalError("{} moves host memory and runs on host streams; {} is not one", name, stream.name());
  }
  return *host;
}

}  // namespace

MpiCommunicator::MpiCommunicator(CommHandle comm, const std::string& name, const MpiOptions& options)
    : MpiGroup(std::move(comm), name, options),
      data_comm_(comm::duplicate(raw(), name + " data")),
      data_{data_comm_.get(), name, options.spin, options.max_message_bytes},
      messages_(data_, options.window_bytes) {
  if (size() == 1) return;
  data_.between_nodes = &between_nodes_;
  data_.rank = rank();
  data_.ranks_per_node = layout().ranks_per_node;
  if (options.force_messages || layout().ranks_per_node == 1) return;
  const std::string inside = layout().one_node ? name : name + ", of one node";
  shared_ = std::make_unique<SharedCollectives>(node_comm(), inside, options.spin, options.staging_bytes);
  if (layout().one_node) return;
  across_ = {layout().peers.get(), name, options.spin, options.max_message_bytes, &between_nodes_};
  nodes_ = std::make_unique<NodeCollectives>(*shared_, across_, messages_, options.window_bytes);
}

device::Buffer MpiCommunicator::allocate_exchange(device::Device& device, std::size_t size_bytes,
                                                  device::MemoryKind kind, std::string_view label) {
  if (device.kind() != device::DeviceKind::cpu) {
    throw InternalError("{} exchanges host memory only; the device is {}", name(), device.description());
  }
  if (shared_ == nullptr) {
    device::Buffer buffer = device.allocate(size_bytes, kind, label);
    if (size_bytes > 0) std::memset(buffer.data(), 0, size_bytes);
    return buffer;
  }
  std::unique_ptr<SharedWindow> window;
  std::byte* own = nullptr;
  // One node may lack the room while another has it. After the agreement peers may read the window.
  all_or_none(*this, fmt::format("allocating {} on {}", label, name()), [&] {
    window = std::make_unique<SharedWindow>(node_comm(), name(), size_bytes, label);
    own = window->own();
    if (size_bytes > 0)
      std::memset(own, 0, size_bytes);  // the first touch also places the pages near this rank
  });
  const auto windows = shared_->windows();
  const std::uint32_t number = windows->add(std::move(window));
  return device::Buffer(own, size_bytes, kind, device.ledger(),
                        [windows, number](void*) { windows->take(number); });
}

template <class Work>
void MpiCommunicator::collective(Work&& work) {
  if (in_collective_.exchange(true)) {
    throw InternalError(
        "{}: two streams run collectives of one communicator at once, in an order that ranks cannot know",
        name());
  }
  struct Leave {
    std::atomic<bool>& flag;
    ~Leave() { flag = false; }
  } const leave{in_collective_};
  if (nodes_ != nullptr) {
    work(static_cast<Collectives&>(*nodes_));
  } else if (shared_ != nullptr) {
    work(static_cast<Collectives&>(*shared_));
  } else {
    work(static_cast<Collectives&>(messages_));
  }
}

device::Event MpiCommunicator::all_gather(ConstByteView in, ByteView out, device::Stream& stream) {
  CARTAN_ASSERT(out.size() == in.size() * static_cast<std::size_t>(size()));
  std::vector<ByteView> parts;
  parts.reserve(static_cast<std::size_t>(size()));
  for (int r = 0; r < size(); ++r)
    parts.push_back(out.subspan(static_cast<std::size_t>(r) * in.size(), in.size()));
  return submit(stream, "all_gather", in.size(), sent_by_all_gather(in.size(), size()),
                [=, this, parts = std::move(parts)] {
                  copy_bytes(in, parts[static_cast<std::size_t>(rank())]);
                  collective([&](Collectives& c) { c.all_gather_parts(parts); });
                });
}

device::Event MpiCommunicator::all_gather_parts(std::vector<ByteView> parts, device::Stream& stream) {
  CARTAN_ASSERT(parts.size() == static_cast<std::size_t>(size()));
  const std::size_t own = parts[static_cast<std::size_t>(rank())].size();
  return submit(stream, "all_gather", own, sent_by_all_gather(own, size()), [this, parts = std::move(parts)] {
    collective([&](Collectives& c) { c.all_gather_parts(parts); });
  });
}

device::Event MpiCommunicator::all_to_all(ConstByteView in, ByteView out, device::Stream& stream) {
  CARTAN_ASSERT(in.size() == out.size() && in.size() % static_cast<std::size_t>(size()) == 0);
  return submit(stream, "all_to_all", in.size(), sent_by_all_to_all(in.size(), size()),
                [=, this] { collective([&](Collectives& c) { c.all_to_all(in, out); }); });
}

device::Event MpiCommunicator::broadcast(ByteView data, int root, device::Stream& stream) {
  require_peer(root);
  return submit(stream, "broadcast", data.size(), sent_by_broadcast(data.size(), root, rank(), size()),
                [=, this] { collective([&](Collectives& c) { c.broadcast(data, root); }); });
}

device::Event MpiCommunicator::send(ConstByteView data, int peer, device::Stream& stream) {
  require_peer(peer);
  return submit(stream, "send", data.size(), sent_by_send(data.size(), peer, rank()), [=, this] {
    Requests requests(data_, "send");
    requests.send(data, peer, kTagPoint);
    requests.wait();
  });
}

device::Event MpiCommunicator::receive(ByteView data, int peer, device::Stream& stream) {
  require_peer(peer);
  return submit(stream, "receive", data.size(), 0, [=, this] {
    Requests requests(data_, "receive");
    requests.receive(data, peer, kTagPoint);
    requests.wait();
  });
}

device::Event MpiCommunicator::sum_integers(std::span<std::int64_t> values, device::Stream& stream) {
  return submit(stream, "sum_integers", values.size_bytes(), 0, [=, this] {
    Requests requests(data_, "sum_integers");
    requests.all_reduce(values, MPI_SUM);
    requests.wait();
  });
}

device::Event MpiCommunicator::reduce_scatter(const PartialSums& sums, std::vector<float*> stack,
                                              device::Stream& stream) {
  return reduce(sums, std::move(stack), Reach::scatter, stream);
}

device::Event MpiCommunicator::all_reduce(const PartialSums& sums, device::Stream& stream) {
  CARTAN_ASSERT(!sums.slots.empty() && !sums.leaves && sums.shard == 0);
  return reduce(sums, {sums.slots[0] + chunk_range(sums.count, rank(), size()).begin}, Reach::all, stream);
}

device::Event MpiCommunicator::reduce(const PartialSums& sums, std::vector<float*> stack, Reach reach,
                                      device::Stream& stream) {
  const auto plan = plans_.of(sums, rank(), size(), name());
  const bool to_all = reach == Reach::all;
  return submit(
      stream, to_all ? "all_reduce" : "reduce_scatter", static_cast<std::size_t>(sums.count) * sizeof(float),
      to_all ? sent_by_all_reduce(sums, rank(), size()) : sent_by_reduce_scatter(sums, rank(), size()),
      [this, plan, slots = sums.slots, count = sums.count, stack = std::move(stack), reach] {
        collective([&](Collectives& c) { c.reduce(*plan, slots, count, stack, reach); });
      });
}

device::Event MpiCommunicator::submit(device::Stream& stream, std::string_view verb, std::size_t bytes,
                                      std::uint64_t sent, std::function<void()> task) {
  device::HostStream& host = as_host(stream, name());
  return host.submit([this, sequence = recorder().open(verb, bytes, sent), task = std::move(task)] {
    timed(recorder(), sequence, true, task);
  });
}

}  // namespace cartan::comm
