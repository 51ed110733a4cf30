// Verbs of the MPI communicator: the control plane here, the data plane as tasks on host streams.
#include "comm/mpi/mpi_communicator.hpp"

#include <cstring>

#include "cartan/core/narrow.hpp"
#include "comm/mpi/check.hpp"
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

void prepare(MPI_Comm comm, const std::string& name) {
  check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), name, "set-up");
  check(MPI_Comm_set_name(comm, name.substr(0, MPI_MAX_OBJECT_NAME - 1).c_str()), name, "set-up");
}

CommHandle duplicate(MPI_Comm parent, const std::string& name) {
  MPI_Comm raw = MPI_COMM_NULL;
  check(MPI_Comm_dup(parent, &raw), name, "set-up");
  CommHandle made(raw);
  prepare(raw, name);
  return made;
}

MpiCommunicator::MpiCommunicator(CommHandle comm, const std::string& name, const MpiOptions& options)
    : comm_(std::move(comm)),
      data_comm_(duplicate(comm_.get(), name + " data")),
      control_{comm_.get(), name, options.spin, options.max_message_bytes},
      data_{data_comm_.get(), name, options.spin, options.max_message_bytes},
      messages_(data_, options.window_bytes),
      recorder_(options.totals) {
  prepare(raw(), name);
  check(MPI_Comm_rank(raw(), &rank_), name, "set-up");
  check(MPI_Comm_size(raw(), &size_), name, "set-up");
  if (size_ == 1) return;
  layout_ = find_nodes(raw(), name, options.ranks_per_node);
  data_.between_nodes = &between_nodes_;
  data_.rank = rank_;
  data_.ranks_per_node = layout_.ranks_per_node;
  if (options.force_messages || layout_.ranks_per_node == 1) return;
  const std::string inside = layout_.one_node ? name : name + ", of one node";
  shared_ = std::make_unique<SharedCollectives>(node_comm(), inside, options.spin, options.staging_bytes);
  if (layout_.one_node) return;
  across_ = {layout_.peers.get(), name, options.spin, options.max_message_bytes, &between_nodes_};
  nodes_ = std::make_unique<NodeCollectives>(*shared_, across_, messages_, options.window_bytes);
}

std::int64_t MpiCommunicator::max(std::int64_t value) {
  std::int64_t largest = value;
  timed(recorder_, recorder_.open("max", sizeof value), false, [&] {
    Requests requests(control_, "max");
    requests.collective([&](MPI_Request* request) {
      return MPI_Iallreduce(&value, &largest, 1, MPI_INT64_T, MPI_MAX, raw(), request);
    });
    requests.wait();
  });
  return largest;
}

void MpiCommunicator::barrier() {
  timed(recorder_, recorder_.open("barrier", 0), false, [&] {
    Requests requests(control_, "barrier");
    requests.collective([&](MPI_Request* request) { return MPI_Ibarrier(raw(), request); });
    requests.wait();
  });
}

void MpiCommunicator::sum(std::span<std::int64_t> values) {
  timed(recorder_, recorder_.open("sum", values.size_bytes()), false, [&] {
    Requests requests(control_, "sum");
    requests.collective([&](MPI_Request* request) {
      // NOLINTNEXTLINE(mpi-type-mismatch): std::int64_t is what MPI_INT64_T stands for
      return MPI_Iallreduce(MPI_IN_PLACE, values.data(), narrow<int>(values.size()), MPI_INT64_T, MPI_SUM,
                            raw(), request);
    });
    requests.wait();
  });
}

void MpiCommunicator::broadcast_host(ByteView data, int root) {
  require_peer(root);
  timed(recorder_, recorder_.open("broadcast_host", data.size()), false,
        [&] { broadcast_bytes(control_, data, root, "broadcast_host"); });
}

void MpiCommunicator::all_gather_host(ConstByteView in, ByteView out) {
  CARTAN_ASSERT(out.size() == in.size() * static_cast<std::size_t>(size_));
  timed(recorder_, recorder_.open("all_gather_host", in.size()), false, [&] {
    Requests requests(control_, "all_gather_host");
    requests.collective([&](MPI_Request* request) {
      return MPI_Iallgather(in.data(), narrow<int>(in.size()), MPI_BYTE, out.data(), narrow<int>(in.size()),
                            MPI_BYTE, raw(), request);
    });
    requests.wait();
  });
}

void MpiCommunicator::send_host(ConstByteView data, int peer) {
  require_peer(peer);
  timed(recorder_, recorder_.open("send_host", data.size()), false, [&] {
    Requests requests(control_, "send_host");
    requests.send(data, peer, kTagHost);
    requests.wait();
  });
}

void MpiCommunicator::receive_host(ByteView data, int peer) {
  require_peer(peer);
  timed(recorder_, recorder_.open("receive_host", data.size()), false, [&] {
    Requests requests(control_, "receive_host");
    requests.receive(data, peer, kTagHost);
    requests.wait();
  });
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
  CARTAN_ASSERT(out.size() == in.size() * static_cast<std::size_t>(size_));
  std::vector<ByteView> parts;
  parts.reserve(static_cast<std::size_t>(size_));
  for (int r = 0; r < size_; ++r)
    parts.push_back(out.subspan(static_cast<std::size_t>(r) * in.size(), in.size()));
  return submit(stream, "all_gather", in.size(), sent_by_all_gather(in.size(), size_),
                [=, this, parts = std::move(parts)] {
                  copy_bytes(in, parts[static_cast<std::size_t>(rank_)]);
                  collective([&](Collectives& c) { c.all_gather_parts(parts); });
                });
}

device::Event MpiCommunicator::all_gather_parts(std::vector<ByteView> parts, device::Stream& stream) {
  CARTAN_ASSERT(parts.size() == static_cast<std::size_t>(size_));
  const std::size_t own = parts[static_cast<std::size_t>(rank_)].size();
  return submit(stream, "all_gather", own, sent_by_all_gather(own, size_), [this, parts = std::move(parts)] {
    collective([&](Collectives& c) { c.all_gather_parts(parts); });
  });
}

device::Event MpiCommunicator::all_to_all(ConstByteView in, ByteView out, device::Stream& stream) {
  CARTAN_ASSERT(in.size() == out.size() && in.size() % static_cast<std::size_t>(size_) == 0);
  return submit(stream, "all_to_all", in.size(), sent_by_all_to_all(in.size(), size_),
                [=, this] { collective([&](Collectives& c) { c.all_to_all(in, out); }); });
}

device::Event MpiCommunicator::broadcast(ByteView data, int root, device::Stream& stream) {
  require_peer(root);
  return submit(stream, "broadcast", data.size(), sent_by_broadcast(data.size(), root, rank_, size_),
                [=, this] { collective([&](Collectives& c) { c.broadcast(data, root); }); });
}

device::Event MpiCommunicator::send(ConstByteView data, int peer, device::Stream& stream) {
  require_peer(peer);
  return submit(stream, "send", data.size(), sent_by_send(data.size(), peer, rank_), [=, this] {
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

device::Event MpiCommunicator::reduce_scatter(const PartialSums& sums, std::vector<float*> stack,
                                              device::Stream& stream) {
  return reduce(sums, std::move(stack), Reach::scatter, stream);
}

device::Event MpiCommunicator::all_reduce(const PartialSums& sums, device::Stream& stream) {
  CARTAN_ASSERT(!sums.slots.empty() && !sums.leaves && sums.shard == 0);
  return reduce(sums, {sums.slots[0] + chunk_range(sums.count, rank_, size_).begin}, Reach::all, stream);
}

device::Event MpiCommunicator::reduce(const PartialSums& sums, std::vector<float*> stack, Reach reach,
                                      device::Stream& stream) {
  CARTAN_ASSERT(sums.tree != nullptr && sums.count >= 0);
  const auto plan = plan_of(sums);
  const int needed = std::max(1, plan->slots_of_rank[static_cast<std::size_t>(rank_)]);
  if (sums.slots.size() < static_cast<std::size_t>(needed)) {
    throw InternalError("{}: rank {} of {} holds {} partial sums of {} leaves, but brings {} slots", name(),
                        rank_, size_, needed, sums.tree->leaves(), sums.slots.size());
  }
  const bool to_all = reach == Reach::all;
  return submit(stream, to_all ? "all_reduce" : "reduce_scatter",
                static_cast<std::size_t>(sums.count) * sizeof(float),
                to_all ? sent_by_all_reduce(sums, rank_, size_) : sent_by_reduce_scatter(sums, rank_, size_),
                [this, plan, slots = sums.slots, count = sums.count, stack = std::move(stack), reach] {
                  collective([&](Collectives& c) { c.reduce(*plan, slots, count, stack, reach); });
                });
}

device::Event MpiCommunicator::submit(device::Stream& stream, std::string_view verb, std::size_t bytes,
                                      std::uint64_t sent, std::function<void()> task) {
  device::HostStream& host = as_host(stream, name());
  return host.submit([this, sequence = recorder_.open(verb, bytes, sent), task = std::move(task)] {
    timed(recorder_, sequence, true, task);
  });
}

std::shared_ptr<const ReductionPlan> MpiCommunicator::plan_of(const PartialSums& sums) {
  const ReductionShape shape = shape_of(sums, size_);
  auto& plan = plans_[shape.key()];
  if (plan == nullptr) plan = std::make_shared<const ReductionPlan>(plan_reduction(shape));
  return plan;
}

void MpiCommunicator::require_peer(int peer) const {
  if (peer < 0 || peer >= size_)
    throw InternalError("{} has {} ranks; there is no rank {}", name(), size_, peer);
}

}  // namespace cartan::comm
