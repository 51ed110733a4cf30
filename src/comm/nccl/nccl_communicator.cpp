// How the groups of a mesh are made, and the verbs that move data as it is; sums are in nccl_sums.cpp.
#include "comm/nccl/nccl_communicator.hpp"

#include "cartan/device/cuda_stream.hpp"
#include "comm/mpi/check.hpp"
#include "comm/nccl/check.hpp"
#include "comm/nccl/nccl_memory.hpp"
#include "comm/nccl/watchdog.hpp"
#include "comm/traffic.hpp"

namespace cartan::comm {
namespace {

/// A receive is often posted long before its message comes, and holds its thread blocks' share of the GPU
/// until then. Eight move some 100 GB/s.
constexpr int kMessageBlocks = 8;

/// Of a communicator of the mesh: waits for MPI end too when another one fails.
MpiOptions with_health(MpiOptions options, const std::shared_ptr<FirstFailure>& failure) {
  options.check_health = [failure] { failure->check(); };
  return options;
}

}  // namespace

NcclCommunicator::NcclCommunicator(CommHandle comm, const std::string& name, const MpiOptions& options,
                                   Shared shared, int most_blocks)
    : MpiGroup(std::move(comm), name, with_health(options, shared.failure)),
      options_(options),
      shared_(std::move(shared)),
      most_blocks_(most_blocks),
      clock_(recorder()) {
  shared_.registry->add(this);
}

NcclCommunicator::~NcclCommunicator() { shared_.registry->remove(this); }

void NcclCommunicator::connect() {
  if (size() == 1 || link_ != nullptr) return;
  auto made = std::make_shared<NcclLink>(
      *this, LinkOptions{shared_.connect_timeout_s, most_blocks_, shared_.failure});
  const std::lock_guard lock(mutex_);
  link_ = std::move(made);
}

void NcclCommunicator::connect_ring(int step) {
  CARTAN_ASSERT(step == 1 || step == -1);
  const int ranks = size();
  if (ranks == 1) return;
  // Calls of one communicator run one after another, so a receive that waits would hold up the sends: each
  // pair of neighbours has a communicator of its own. Pair i is made of the ranks i and i + 1; a rank is in
  // two, which are made one after the other: the even ones first, the odd ones next, and where the ring has
  // an odd length its last one, which touches two even ones, at the end.
  const int next = (rank() + ranks + step) % ranks, previous = (rank() + ranks - step) % ranks;
  const int to_next = step > 0 ? rank() : next, from_previous = step > 0 ? previous : rank();
  const auto turn_of = [&](int pair) { return ranks % 2 != 0 && pair + 1 == ranks ? 2 : pair % 2; };
  MpiOptions options = options_;
  options.totals = nullptr;  // calls are counted here
  for (int turn = 0; turn < 2 + ranks % 2; ++turn) {
    const bool is_next = turn_of(to_next) == turn, is_previous = turn_of(from_previous) == turn;
    const int pair = is_next ? to_next : from_previous;
    MPI_Comm raw = MPI_COMM_NULL;
    check(MPI_Comm_split(this->raw(), is_next || is_previous ? pair : MPI_UNDEFINED, rank(), &raw), name(),
          "set-up");
    if (raw == MPI_COMM_NULL) continue;
    Neighbour& neighbour = is_next ? next_ : previous_;
    auto made = std::make_unique<NcclCommunicator>(
        CommHandle(raw), fmt::format("pair {} of {}", pair, name()), options, shared_, kMessageBlocks);
    made->connect();
    const std::lock_guard lock(mutex_);
    neighbour.peer = is_next ? next : previous;
    neighbour.pair = std::move(made);
  }
}

NcclLink& NcclCommunicator::link() {
  connect();
  return *link_;
}

device::Event NcclCommunicator::recorded(std::string_view verb, std::size_t bytes, std::uint64_t sent,
                                         device::Stream& stream, const Work& work) {
  CUstream_st* const native = device::native_stream(stream);
  if (native == nullptr)
    throw InternalError("{} moves a GPU's memory and runs on its streams; {} is not one", name(),
                        stream.name());
  const CallName call{verb, recorder().open(verb, bytes, sent)};
  clock_.begin(call.sequence, native);
  work(call, native);
  clock_.end(native);
  return stream.record();
}

std::vector<CallRecord> NcclCommunicator::recent_calls() const {
  clock_.read();
  return MpiGroup::recent_calls();
}

double NcclCommunicator::seconds() const {
  clock_.read();
  return MpiGroup::seconds();
}

std::vector<std::shared_ptr<NcclLink>> NcclCommunicator::links() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<NcclLink>> found;
  if (link_ != nullptr) found.push_back(link_);
  for (const Neighbour* neighbour : {&next_, &previous_}) {
    if (neighbour->pair == nullptr) continue;
    for (auto& link : neighbour->pair->links()) found.push_back(std::move(link));
  }
  return found;
}

CallName NcclCommunicator::name_of(std::uint64_t sequence) const {
  for (const CallRecord& call : recorder().recent())
    if (call.sequence == sequence) return {call.verb, sequence};
  return {"call", sequence};
}

CallName NcclCommunicator::oldest_call() const {
  for (const CallRecord& call : recent_calls())
    if (!call.done) return {call.verb, call.sequence};
  return {"no call", calls()};
}

void NcclCommunicator::poll() {
  for (const std::shared_ptr<NcclLink>& link : links()) {
    const ncclResult_t found = link->state();
    if (!is_fine(found)) link->check(found, oldest_call());
  }
  if (shared_.call_timeout_s <= 0) return;
  const auto overdue = clock_.overdue(shared_.call_timeout_s);
  if (!overdue) return;
  throw PeerError(
      "{} #{} on {}, rank {} of {}, is not over after {} s (watch.timeout): another rank hangs or is gone, "
      "or "
      "the network is stuck; NCCL_DEBUG=INFO tells more",
      name_of(*overdue).verb, *overdue, name(), rank(), size(), shared_.call_timeout_s);
}

void NcclCommunicator::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (link_ != nullptr) link_->abort();
}

device::Buffer NcclCommunicator::allocate_exchange(device::Device& device, std::size_t size_bytes,
                                                   device::MemoryKind kind, std::string_view label) {
  if (device.kind() != device::DeviceKind::cuda)
    throw InternalError("{} exchanges a GPU's memory only; the device is {}", name(), device.description());
  device::Buffer buffer;
  const auto allocate = [&] {
    std::shared_ptr<ReductionRoom::Place> place = shared_.room->on(device);
    if (size() == 1) {
      buffer = device.allocate(size_bytes, kind, label);
    } else {
      // Sums go from here to the peers' rooms: both are registered.
      const auto registered = std::make_shared<Registrations>(link_);
      buffer = allocate_mappable(device, size_bytes, kind, label, registered);
      if (!registered->is_empty()) registered->add(place->memory.data(), place->memory.size_bytes());
    }
    buffer.keep(std::move(place));
    if (size_bytes == 0) return;
    device::Stream& stream = device.compute_stream();
    check(cudaMemsetAsync(buffer.data(), 0, size_bytes, device::native_stream(stream)), "cudaMemsetAsync");
    stream.synchronize();
  };
  connect();
  if (size() == 1)
    allocate();
  else
    all_or_none(*this, fmt::format("allocating {} on {}", label, name()), allocate);
  return buffer;
}

device::Event NcclCommunicator::all_gather(ConstByteView in, ByteView out, device::Stream& stream) {
  CARTAN_ASSERT(out.size() == in.size() * static_cast<std::size_t>(size()));
  return recorded("all_gather", in.size(), sent_by_all_gather(in.size(), size()), stream,
                  [&](const CallName& call, cudaStream_t native) {
                    if (in.empty()) return;
                    if (size() == 1) {
                      if (in.data() != out.data())
                        device::copy_on_gpu(out.data(), in.data(), in.size(), stream);
                      return;
                    }
                    link().run(call, [&](ncclComm_t comm) {
                      return ncclAllGather(in.data(), out.data(), in.size(), ncclUint8, comm, native);
                    });
                  });
}

device::Event NcclCommunicator::all_gather_parts(std::vector<ByteView> parts, device::Stream& stream) {
  CARTAN_ASSERT(parts.size() == static_cast<std::size_t>(size()));
  const std::size_t own = parts[static_cast<std::size_t>(rank())].size();
  return recorded("all_gather", own, sent_by_all_gather(own, size()), stream,
                  [&](const CallName& call, cudaStream_t native) { gather(call, parts, native); });
}

void NcclCommunicator::gather(const CallName& call, std::span<const ByteView> parts, cudaStream_t stream) {
  if (size() == 1) return;
  const std::size_t each = parts[0].size();
  bool regular = true;
  for (std::size_t r = 0; r < parts.size(); ++r)
    regular = regular && parts[r].size() == each && parts[r].data() == parts[0].data() + r * each;
  const ByteView own = parts[static_cast<std::size_t>(rank())];
  link().run(call, [&](ncclComm_t comm) {
    if (regular) return ncclAllGather(own.data(), parts[0].data(), each, ncclUint8, comm, stream);
    // A group of broadcasts is a gather of unequal parts: as with a ring, each part enters a node once.
    ncclResult_t result = ncclSuccess;
    for (int r = 0; r < size() && is_fine(result); ++r) {
      const ByteView part = parts[static_cast<std::size_t>(r)];
      if (!part.empty())
        result = ncclBroadcast(part.data(), part.data(), part.size(), ncclUint8, r, comm, stream);
    }
    return result;
  });
}

device::Event NcclCommunicator::all_to_all(ConstByteView in, ByteView out, device::Stream& stream) {
  CARTAN_ASSERT(in.size() == out.size() && in.size() % static_cast<std::size_t>(size()) == 0);
  const std::size_t block = in.size() / static_cast<std::size_t>(size());
  const auto at = [&](int r) { return static_cast<std::size_t>(r) * block; };
  return recorded("all_to_all", in.size(), sent_by_all_to_all(in.size(), size()), stream,
                  [&](const CallName& call, cudaStream_t native) {
                    if (block == 0) return;
                    device::copy_on_gpu(out.data() + at(rank()), in.data() + at(rank()), block, stream);
                    if (size() == 1) return;
                    link().run(call, [&](ncclComm_t comm) {
                      ncclResult_t result = ncclSuccess;
                      for (int step = 1; step < size() && is_fine(result); ++step) {
                        const int to = (rank() + step) % size(), from = (rank() + size() - step) % size();
                        result = ncclSend(in.data() + at(to), block, ncclUint8, to, comm, native);
                        if (is_fine(result))
                          result = ncclRecv(out.data() + at(from), block, ncclUint8, from, comm, native);
                      }
                      return result;
                    });
                  });
}

device::Event NcclCommunicator::broadcast(ByteView data, int root, device::Stream& stream) {
  require_peer(root);
  return recorded("broadcast", data.size(), sent_by_broadcast(data.size(), root, rank(), size()), stream,
                  [&](const CallName& call, cudaStream_t native) {
                    if (size() == 1 || data.empty()) return;
                    link().run(call, [&](ncclComm_t comm) {
                      return ncclBroadcast(data.data(), data.data(), data.size(), ncclUint8, root, comm,
                                           native);
                    });
                  });
}

NcclCommunicator::Message NcclCommunicator::message_with(const Neighbour& neighbour, int peer) {
  require_peer(peer);
  if (peer == rank()) throw InternalError("{}: rank {} sends to itself", name(), peer);
  if (neighbour.pair != nullptr && neighbour.peer == peer)
    return {neighbour.pair->link(), 1 - neighbour.pair->rank()};
  return {link(), peer};
}

device::Event NcclCommunicator::send(ConstByteView data, int peer, device::Stream& stream) {
  const Message message = message_with(next_, peer);
  return recorded("send", data.size(), sent_by_send(data.size(), peer, rank()), stream,
                  [&](const CallName& call, cudaStream_t native) {
                    if (data.empty()) return;
                    message.link.run(call, [&](ncclComm_t comm) {
                      return ncclSend(data.data(), data.size(), ncclUint8, message.peer, comm, native);
                    });
                  });
}

device::Event NcclCommunicator::receive(ByteView data, int peer, device::Stream& stream) {
  const Message message = message_with(previous_, peer);
  return recorded("receive", data.size(), 0, stream, [&](const CallName& call, cudaStream_t native) {
    if (data.empty()) return;
    message.link.run(call, [&](ncclComm_t comm) {
      return ncclRecv(data.data(), data.size(), ncclUint8, message.peer, comm, native);
    });
  });
}

namespace {

class NcclGroupsOfMesh final : public NcclGroups {
 public:
  explicit NcclGroupsOfMesh(const NcclOptions& options)
      : shared_{options.connect_timeout_s, options.call_timeout_s,
                std::make_shared<ReductionRoom>(options.room_bytes,
                                                [](device::Device& device, std::size_t size_bytes,
                                                   device::MemoryKind kind, std::string_view label) {
                                                  return allocate_mappable(device, size_bytes, kind, label);
                                                }),
                std::make_shared<NcclRegistry>(), std::make_shared<FirstFailure>()} {
    if (options.watch_interval_s <= 0) return;
    WatchdogOptions watch{options.watch_interval_s, options.grace_s, 0};
    check(cudaGetDevice(&watch.gpu), "cudaGetDevice");
    watchdog_ = std::make_unique<Watchdog>(Watchdog::Duties{[this] { poll(); }, [this] { abort(); },
                                                            options.give_up ? options.give_up : end_process},
                                           shared_.failure, watch);
  }

  std::unique_ptr<Communicator> make(CommHandle comm, const std::string& name, const MpiOptions& options,
                                     NcclUse use, int step) override {
    auto made = std::make_unique<NcclCommunicator>(std::move(comm), name, options, shared_);
    if (use == NcclUse::collectives || use == NcclUse::all) made->connect();
    if (use == NcclUse::ring || use == NcclUse::all) made->connect_ring(step);
    return made;
  }
  void poll() override {
    shared_.failure->check();
    shared_.registry->for_each([](NcclCommunicator& communicator) { communicator.poll(); });
  }
  void abort() noexcept override {
    shared_.registry->for_each([](NcclCommunicator& communicator) { communicator.abort(); });
  }
  void read_clocks() override {
    shared_.registry->for_each([](NcclCommunicator& communicator) { communicator.read_clock(); });
  }

 private:
  NcclCommunicator::Shared shared_;
  std::unique_ptr<Watchdog> watchdog_;  // the last: its thread uses the others
};

}  // namespace

std::unique_ptr<NcclGroups> make_nccl_groups(const NcclOptions& options) {
  return std::make_unique<NcclGroupsOfMesh>(options);
}

}  // namespace cartan::comm
