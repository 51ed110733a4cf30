// Messages from one rank to another. A send is pending until it was received.
#include <cstring>
#include <string>
#include <utility>

#include "nccl_checks.hpp"
#include "nccl_group.hpp"
#include "nccl_types.hpp"
#include "runtime.h"

namespace emu::nccl {
namespace {

/// What one rank sends to, or expects from, another.
struct Message {
  unsigned char* data;
  std::uint64_t count;
  ncclDataType_t type;
  int peer;

  std::size_t bytes() const { return count * size_of(type); }
};

/// Pending until it was taken.
class Send {
 public:
  Send(Shared communicator, const Message& message)
      : communicator_(std::move(communicator)),
        message_(message),
        mail_(communicator_->segment->mail[communicator_->rank][message.peer]),
        number_(++communicator_->sent[static_cast<std::size_t>(message.peer)]) {}

  Step step() {
    if (communicator_->error == ncclRemoteError) return Step::pending;
    if (!is_posted_) {
      if (mail_.taken.load() + 1 != number_ || is_cut_off(*communicator_)) return Step::pending;
      touch(message_.data, message_.bytes(), false);
      mail_.source = static_cast<std::uint64_t>(message_.data - heap.lo);
      mail_.count = message_.count;
      mail_.type = message_.type;
      mail_.posted.store(number_);
      is_posted_ = true;
    }
    if (mail_.taken.load() < number_) return Step::pending;
    if (mail_.differs.load())
      break_off(*communicator_,
                "rank " + std::to_string(message_.peer) + " expected something else than ncclSend of " +
                    std::to_string(message_.count) + " elements of type " + std::to_string(message_.type));
    return Step::done;
  }

 private:
  Shared communicator_;
  Message message_;
  Mailbox& mail_;
  std::uint64_t number_;
  bool is_posted_ = false;
};

class Receive {
 public:
  Receive(Shared communicator, const Message& message)
      : communicator_(std::move(communicator)),
        message_(message),
        mail_(communicator_->segment->mail[message.peer][communicator_->rank]),
        number_(++communicator_->received[static_cast<std::size_t>(message.peer)]) {}

  Step step() {
    if (communicator_->error == ncclRemoteError || mail_.posted.load() < number_) return Step::pending;
    if (is_cut_off(*communicator_)) return Step::pending;
    if (!is_reachable(*communicator_, message_.peer)) return Step::pending;
    if (mail_.count != message_.count || mail_.type != message_.type) {
      break_off(*communicator_, "ncclRecv of " + std::to_string(message_.count) + " elements of type " +
                                    std::to_string(message_.type) + " meets ncclSend of " +
                                    std::to_string(mail_.count) + " of type " + std::to_string(mail_.type) +
                                    " from rank " + std::to_string(message_.peer));
      mail_.differs.store(true);
    } else {
      touch(message_.data, message_.bytes(), true);
      std::memcpy(message_.data, communicator_->heap_of(message_.peer) + mail_.source, message_.bytes());
    }
    mail_.taken.store(number_);
    return Step::done;
  }

 private:
  Shared communicator_;
  Message message_;
  Mailbox& mail_;
  std::uint64_t number_;
};

template <class Direction>
ncclResult_t point_to_point(const char* name, Message message, ncclComm_t handle, cudaStream_t stream) {
  if (const ncclResult_t early = begin_call(name); early != ncclSuccess) return fail(early);
  const Shared communicator = find(name, handle);
  if (communicator == nullptr) return fail(ncclInvalidArgument);
  const std::lock_guard lock(big_lock());
  if (const ncclResult_t fault = fault_in(name, communicator, message.type); fault != ncclSuccess)
    return fail(fault);
  if (message.peer < 0 || message.peer >= communicator->size)
    return fail(misuse(std::string(name) + ": rank " + std::to_string(message.peer), ncclInvalidArgument));
  if (const ncclResult_t fault = fault_in_range(name, message.data, message.bytes()); fault != ncclSuccess)
    return fail(fault);
  if (message.count == 0) return ncclSuccess;
  return add({communicator, stream, std::string(name) + " with " + std::to_string(message.peer),
              starting<Direction>(communicator, message)});
}

}  // namespace
}  // namespace emu::nccl

using namespace emu::nccl;

extern "C" {

ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  auto* const bytes = static_cast<unsigned char*>(const_cast<void*>(data));
  return point_to_point<Send>("ncclSend", {bytes, count, type, peer}, communicator, stream);
}

ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  return point_to_point<Receive>("ncclRecv", {static_cast<unsigned char*>(data), count, type, peer},
                                 communicator, stream);
}
}
