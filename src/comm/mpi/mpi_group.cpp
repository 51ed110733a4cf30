// The control plane, and what a group over MPI is asked about itself.
#include "comm/mpi/mpi_group.hpp"

#include "cartan/core/narrow.hpp"
#include "comm/mpi/check.hpp"
#include "comm/mpi/message_collectives.hpp"
#include "comm/mpi/tags.hpp"

namespace cartan::comm {

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

MpiGroup::MpiGroup(CommHandle comm, const std::string& name, const MpiOptions& options)
    : comm_(std::move(comm)),
      force_messages_(options.force_messages),
      control_{comm_.get(), name, options.spin, options.max_message_bytes},
      recorder_(options.totals) {
  control_.check_health = options.check_health;
  prepare(raw(), name);
  check(MPI_Comm_rank(raw(), &rank_), name, "set-up");
  check(MPI_Comm_size(raw(), &size_), name, "set-up");
  if (size_ > 1) layout_ = find_nodes(raw(), name, options.ranks_per_node);
}

std::int64_t MpiGroup::max(std::int64_t value) {
  max(std::span(&value, 1));
  return value;
}

void MpiGroup::barrier() {
  timed(recorder_, recorder_.open("barrier", 0), false, [&] {
    Requests requests(control_, "barrier");
    requests.collective([&](MPI_Request* request) { return MPI_Ibarrier(raw(), request); });
    requests.wait();
  });
}

void MpiGroup::sum(std::span<std::int64_t> values) { combine(values, "sum", MPI_SUM); }

void MpiGroup::max(std::span<std::int64_t> values) { combine(values, "max", MPI_MAX); }

void MpiGroup::combine(std::span<std::int64_t> values, std::string_view verb, MPI_Op operation) {
  timed(recorder_, recorder_.open(verb, values.size_bytes()), false, [&] {
    Requests requests(control_, verb);
    requests.all_reduce(values, operation);
    requests.wait();
  });
}

void MpiGroup::broadcast_host(ByteView data, int root) {
  require_peer(root);
  timed(recorder_, recorder_.open("broadcast_host", data.size()), false,
        [&] { broadcast_bytes(control_, data, root, "broadcast_host"); });
}

void MpiGroup::all_gather_host(ConstByteView in, ByteView out) {
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

void MpiGroup::send_host(ConstByteView data, int peer) {
  require_peer(peer);
  timed(recorder_, recorder_.open("send_host", data.size()), false, [&] {
    Requests requests(control_, "send_host");
    requests.send(data, peer, kTagHost);
    requests.wait();
  });
}

void MpiGroup::receive_host(ByteView data, int peer) {
  require_peer(peer);
  timed(recorder_, recorder_.open("receive_host", data.size()), false, [&] {
    Requests requests(control_, "receive_host");
    requests.receive(data, peer, kTagHost);
    requests.wait();
  });
}

void MpiGroup::tell_failure() {
  const std::byte mark{};
  Requests requests(control_, "telling of a failure");
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) requests.send({&mark, 1}, peer, kTagFailure);
  requests.wait();
}

int MpiGroup::failed_peer() const {
  int found = 0;
  MPI_Status status{};
  check(MPI_Iprobe(MPI_ANY_SOURCE, kTagFailure, raw(), &found, &status), name(), "waiting");
  return found != 0 ? status.MPI_SOURCE : -1;
}

void MpiGroup::require_peer(int peer) const {
  if (peer < 0 || peer >= size_)
    throw InternalError("{} has {} ranks; there is no rank {}", name(), size_, peer);
}

}  // namespace cartan::comm
