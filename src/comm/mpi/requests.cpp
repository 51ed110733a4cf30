// Non-blocking messages and the loop that waits for them.
#include "comm/mpi/requests.hpp"

#include <algorithm>

#include "cartan/core/narrow.hpp"
#include "comm/backoff.hpp"
#include "comm/mpi/check.hpp"

namespace cartan::comm {

void Requests::send(ConstByteView data, int peer, int tag) {
  const bool leaves_node =
      peer != context_.rank && peer / context_.ranks_per_node != context_.rank / context_.ranks_per_node;
  if (context_.between_nodes != nullptr && leaves_node) *context_.between_nodes += data.size();
  while (!data.empty()) {
    const ConstByteView piece = data.first(std::min(data.size(), context_.max_message_bytes));
    MPI_Request request = MPI_REQUEST_NULL;
    check_code(
        MPI_Isend(piece.data(), narrow<int>(piece.size()), MPI_BYTE, peer, tag, context_.comm, &request),
        peer);
    add(request, peer);
    data = data.subspan(piece.size());
  }
}

void Requests::receive(ByteView data, int peer, int tag) {
  while (!data.empty()) {
    const ByteView piece = data.first(std::min(data.size(), context_.max_message_bytes));
    MPI_Request request = MPI_REQUEST_NULL;
    check_code(
        MPI_Irecv(piece.data(), narrow<int>(piece.size()), MPI_BYTE, peer, tag, context_.comm, &request),
        peer);
    add(request, peer);
    data = data.subspan(piece.size());
  }
}

void Requests::all_reduce(std::span<std::int64_t> values, MPI_Op operation) {
  collective([&](MPI_Request* request) {
    // NOLINTNEXTLINE(mpi-type-mismatch): std::int64_t is what MPI_INT64_T stands for
    return MPI_Iallreduce(MPI_IN_PLACE, values.data(), narrow<int>(values.size()), MPI_INT64_T, operation,
                          context_.comm, request);
  });
}

void Requests::wait() {
  Backoff backoff(context_.spin);
  std::vector<MPI_Status> statuses(requests_.size());
  int done = 0;
  while (true) {
    check_health();
    const int code = MPI_Testall(narrow<int>(requests_.size()), requests_.data(), &done, statuses.data());
    if (code == MPI_ERR_IN_STATUS) {
      for (std::size_t i = 0; i < statuses.size(); ++i) {
        if (statuses[i].MPI_ERROR != MPI_ERR_PENDING) check_code(statuses[i].MPI_ERROR, peers_[i]);
      }
    }
    check_code(code, peers_.size() == 1 ? peers_.front() : kNoPeer);
    if (done != 0) break;
    backoff.pause();
  }
  requests_.clear();
  peers_.clear();
}

void Requests::add(MPI_Request request, int peer) {
  requests_.push_back(request);
  peers_.push_back(peer);
}

void Requests::check_code(int code, int peer) const { check(code, context_.name, verb_, peer); }

}  // namespace cartan::comm
