// The collectives. A call is pending until all ranks have posted theirs; calls that differ are a finding on
// all ranks, and an error of the communicator, instead of the hang or the wrong data that they would be on a
// GPU.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "nccl_checks.hpp"
#include "nccl_group.hpp"
#include "nccl_types.hpp"
#include "runtime.h"

namespace emu::nccl {
namespace {

const char* name_of(Verb verb) {
  switch (verb) {
    case Verb::all_reduce:
      return "ncclAllReduce";
    case Verb::reduce:
      return "ncclReduce";
    case Verb::broadcast:
      return "ncclBroadcast";
    case Verb::all_gather:
      return "ncclAllGather";
    default:
      return "ncclReduceScatter";
  }
}

std::string text_of(const Call& call) {
  return std::string(name_of(call.verb)) + " of " + std::to_string(call.count) + " elements of type " +
         std::to_string(call.type) +
         (call.verb == Verb::broadcast ? " from " + std::to_string(call.root) : "") +
         (call.verb == Verb::reduce ? " to " + std::to_string(call.root) : "");
}

bool is_same(const Call& a, const Call& b) {
  return a.verb == b.verb && a.type == b.type && a.reduction == b.reduction && a.root == b.root &&
         a.count == b.count;
}

/// Elements that a rank gives, and that it gets.
std::uint64_t count_in(const Call& call, int size) {
  return call.verb == Verb::reduce_scatter ? call.count * static_cast<std::uint64_t>(size) : call.count;
}
std::uint64_t count_out(const Call& call, int size) {
  return call.verb == Verb::all_gather ? call.count * static_cast<std::uint64_t>(size) : call.count;
}

/// One collective of one rank: posts it, waits for the others, reads their inputs, waits until all have read,
/// writes.
class Collective {
 public:
  Collective(Shared communicator, const Call& call, unsigned char* target)
      : communicator_(std::move(communicator)),
        call_(call),
        target_(target),
        number_(++communicator_->issued) {}

  Step step() {
    if (communicator_->error == ncclRemoteError) return Step::pending;
    // Calls that differed have broken the communicator on all ranks.
    if (communicator_->error == ncclInvalidUsage && phase_ == Phase::post) return Step::done;
    if (phase_ == Phase::post && !post()) return Step::pending;
    if (phase_ == Phase::read && !read()) return Step::pending;
    if (!all_reached(&Member::read)) return Step::pending;
    if (!result_.empty()) {
      touch(target_, result_.size(), true);
      std::memcpy(target_, result_.data(), result_.size());
    }
    communicator_->completed = number_;
    return Step::done;
  }

 private:
  enum class Phase { post, read, write };

  Member& member(int rank) const { return communicator_->segment->members[rank]; }
  Member& me() const { return member(communicator_->rank); }

  bool all_reached(std::atomic<std::uint64_t> Member::*counter) const {
    for (int r = 0; r < communicator_->size; ++r)
      if ((member(r).*counter).load() < number_) return false;
    return true;
  }

  /// In the order of the communicator, whatever the streams.
  bool post() {
    if (communicator_->completed + 1 != number_) return false;
    if (is_cut_off(*communicator_)) return false;
    me().call = call_;
    me().posted.store(number_);
    phase_ = Phase::read;
    return true;
  }

  bool read() {
    if (!all_reached(&Member::posted)) return false;
    if (const int other = first_difference(); other >= 0)
      break_off(*communicator_, "collective " + std::to_string(number_) + " is " + text_of(call_) +
                                    ", but rank " + std::to_string(other) + " calls " +
                                    text_of(member(other).call));
    else if (are_reachable())
      gather_result();
    else
      return false;
    me().read.store(number_);
    phase_ = Phase::write;
    return true;
  }

  bool are_reachable() const {
    for (int r = 0; r < communicator_->size; ++r)
      if (!is_reachable(*communicator_, r)) return false;
    return true;
  }

  /// A rank whose call is another one, or -1.
  int first_difference() const {
    for (int r = 0; r < communicator_->size; ++r)
      if (!is_same(member(r).call, call_)) return r;
    return -1;
  }

  const unsigned char* source(int rank) const {
    return communicator_->heap_of(rank) + member(rank).call.source;
  }

  void gather_result() {
    const std::size_t bytes = call_.count * size_of(call_.type);
    if (call_.verb != Verb::broadcast || call_.root == communicator_->rank)
      touch(source(communicator_->rank), count_in(call_, communicator_->size) * size_of(call_.type), false);
    switch (call_.verb) {
      case Verb::all_reduce:
        return reduce_from(0);
      case Verb::reduce:
        if (call_.root == communicator_->rank) reduce_from(0);
        return;
      case Verb::reduce_scatter:
        return reduce_from(static_cast<std::size_t>(communicator_->rank) * call_.count);
      case Verb::broadcast:
        result_.assign(source(call_.root), source(call_.root) + bytes);
        return;
      case Verb::all_gather:
        for (int r = 0; r < communicator_->size; ++r)
          result_.insert(result_.end(), source(r), source(r) + bytes);
        return;
    }
  }

  void reduce_from(std::size_t first) {
    std::vector<const unsigned char*> sources;
    for (int r = 0; r < communicator_->size; ++r) sources.push_back(source(r) + first * size_of(call_.type));
    result_.resize(call_.count * size_of(call_.type));
    reduce(call_.type, call_.reduction, sources, first, call_.count, result_.data());
  }

  Shared communicator_;
  Call call_;
  unsigned char* target_;
  std::uint64_t number_;
  Phase phase_ = Phase::post;
  std::vector<unsigned char> result_;
};

/// Input and output are apart, or lie as the manual says for work in place.
bool is_well_placed(const Call& call, int rank, int size, const unsigned char* in, const unsigned char* out) {
  const std::size_t element = size_of(call.type);
  const std::size_t in_bytes = count_in(call, size) * element, out_bytes = count_out(call, size) * element;
  if (in + in_bytes <= out || out + out_bytes <= in) return true;
  const std::size_t own = static_cast<std::size_t>(rank) * call.count * element;
  if (call.verb == Verb::all_gather) return in == out + own;
  if (call.verb == Verb::reduce_scatter) return out == in + own;
  return in == out;
}

ncclResult_t collective(Call call, const void* in, void* out, ncclComm_t handle, cudaStream_t stream) {
  const char* const name = name_of(call.verb);
  if (const ncclResult_t early = begin_call(name); early != ncclSuccess) return fail(early);
  const Shared communicator = find(name, handle);
  if (communicator == nullptr) return fail(ncclInvalidArgument);
  const std::lock_guard lock(big_lock());
  if (const ncclResult_t fault = fault_in(name, communicator, call.type); fault != ncclSuccess)
    return fail(fault);
  if (!can_reduce(call.type, call.reduction))
    return fail(misuse(std::string(name) + ": an unknown reduction"));
  if (call.root < 0 || call.root >= communicator->size)
    return fail(misuse(std::string(name) + ": root " + std::to_string(call.root), ncclInvalidArgument));

  const int size = communicator->size, rank = communicator->rank;
  const bool gives = call.verb != Verb::broadcast || call.root == rank;
  const bool gets = call.verb != Verb::reduce || call.root == rank;
  const std::size_t element = size_of(call.type);
  if (gives)
    if (const ncclResult_t fault = fault_in_range(name, in, count_in(call, size) * element);
        fault != ncclSuccess)
      return fail(fault);
  if (gets)
    if (const ncclResult_t fault = fault_in_range(name, out, count_out(call, size) * element);
        fault != ncclSuccess)
      return fail(fault);
  auto* const source = static_cast<const unsigned char*>(gives ? in : out);
  auto* const target = static_cast<unsigned char*>(out);
  if (gets && !is_well_placed(call, rank, size, source, target))
    return fail(
        misuse(std::string(name) + ": input and output overlap, but not as in place", ncclInvalidArgument));
  if (call.count == 0) return ncclSuccess;
  call.source = static_cast<std::uint64_t>(source - heap.lo);
  return add({communicator, stream, name, starting<Collective>(communicator, call, target)});
}

}  // namespace
}  // namespace emu::nccl

using namespace emu::nccl;

extern "C" {

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t reduction, ncclComm_t communicator, cudaStream_t stream) {
  return collective({Verb::all_reduce, type, reduction, 0, count, 0}, in, out, communicator, stream);
}

ncclResult_t ncclReduce(const void* in, void* out, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t reduction, int root, ncclComm_t communicator, cudaStream_t stream) {
  return collective({Verb::reduce, type, reduction, root, count, 0}, in, out, communicator, stream);
}

ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t reduction, ncclComm_t communicator, cudaStream_t stream) {
  return collective({Verb::reduce_scatter, type, reduction, 0, count, 0}, in, out, communicator, stream);
}

ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
  return collective({Verb::all_gather, type, ncclSum, 0, count, 0}, in, out, communicator, stream);
}

ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream) {
  return collective({Verb::broadcast, type, ncclSum, root, count, 0}, in, out, communicator, stream);
}
}
