// Messages under way: started one by one, waited for together. Waiting polls and sleeps, so that ranks which
// share a CPU make progress.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cartan/comm/communicator.hpp"
#include "comm/mpi/check.hpp"

namespace cartan::comm {

/// What the messages of one communicator have in common.
struct MessageContext {
  MPI_Comm comm = MPI_COMM_NULL;
  std::string name;                                      ///< of the communicator, for errors
  bool spin = true;                                      ///< see Backoff
  std::size_t max_message_bytes = std::size_t{1} << 30;  ///< longer payloads are cut: MPI counts are int
  std::atomic<std::uint64_t>* between_nodes = nullptr;   ///< counts what is sent to other nodes
  int rank = -1, ranks_per_node = 1;     ///< that tell them; by default every peer is on another node
  std::function<void()> check_health{};  ///< see MpiOptions
};

class Requests {
 public:
  Requests(const MessageContext& context, std::string_view verb) : context_(context), verb_(verb) {
    check_health();
  }
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  /// Payloads beyond max_message_bytes go as several messages; both sides cut alike.
  void send(ConstByteView data, int peer, int tag);
  void receive(ByteView data, int peer, int tag);
  /// A request that `start(MPI_Request*)` makes, of a non-blocking collective.
  template <class Start>
  void collective(Start&& start) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_code(start(&request), kNoPeer);
    add(request, kNoPeer);
  }

  /// values[i] = the operation over all ranks' values[i]; they must live until wait().
  void all_reduce(std::span<std::int64_t> values, MPI_Op operation);

  /// Returns when all are complete. If one fails the others stay under way: the job is about to end.
  void wait();

 private:
  void add(MPI_Request request, int peer);
  void check_code(int code, int peer) const;
  void check_health() const {
    if (context_.check_health) context_.check_health();
  }

  const MessageContext& context_;
  std::string_view verb_;
  std::vector<MPI_Request> requests_;
  std::vector<int> peers_;
};

}  // namespace cartan::comm
