// Sums in canonical order: an exchange of chunks in rounds, and a kernel that folds what came with what is
// here.
#include <algorithm>

#include "cartan/core/narrow.hpp"
#include "comm/nccl/nccl_communicator.hpp"
#include "comm/traffic.hpp"

namespace cartan::comm {
namespace {

/// Pieces begin at multiples of so many floats, where wide accesses are possible.
constexpr Index kAlignment = 64;

Index length_of(LeafRange range) { return range.end - range.begin; }

Index largest_chunk(const ReductionPlan& plan, Index count) {
  Index most = 0;
  for (int r = 0; r < plan.size(); ++r) most = std::max(most, length_of(plan.chunk(count, r)));
  return most;
}

/// Elements of a round, the same on every rank: what the owner that receives most values has room for.
Index piece_for(const ReductionPlan& plan, std::size_t room_bytes, const std::string& name) {
  const int least = *std::min_element(plan.slots_of_rank.begin(), plan.slots_of_rank.end());
  const Index values = std::ssize(plan.values) - least;
  const Index piece = static_cast<Index>(room_bytes / sizeof(float)) / std::max<Index>(values, 1);
  if (piece < kAlignment)
    throw InternalError("{}: {} bytes are too little room for the sum of {} values, of ranks that {}", name,
                        room_bytes, values,
                        room_bytes == 0 ? "allocated no exchange memory" : "hold so many of each element");
  return piece / kAlignment * kAlignment;
}

/// Pushes values (in the plan's order) on the stack, `count` elements of each.
void fold(const ReductionPlan& plan, std::span<const float* const> values, std::span<float* const> stack,
          Index count, device::Ops& ops, device::Stream& stream) {
  const std::vector<int> runs = entry_runs(plan);
  const int before = plan.depth_before;
  std::vector<const float*> operands;
  std::vector<int> merges;
  for (std::size_t entry = 0; entry + 1 < runs.size(); ++entry) {
    operands.clear();
    merges.clear();
    for (int i = runs[entry]; i < runs[entry + 1]; ++i) {
      const bool is_before = i < before;
      const auto at = static_cast<std::size_t>(is_before ? i : i - before);
      operands.push_back(is_before ? stack[at] : values[at]);
      merges.push_back(is_before ? 0 : plan.values[at].merges);
    }
    if (operands.size() == 1 && operands[0] == stack[entry]) continue;
    ops.tree_sum(operands, merges, stack[entry], count, stream);
  }
}

}  // namespace

device::Event NcclCommunicator::reduce_scatter(const PartialSums& sums, std::vector<float*> stack,
                                               device::Stream& stream) {
  const auto plan = plans_.of(sums, rank(), size(), name());
  return recorded("reduce_scatter", static_cast<std::size_t>(sums.count) * sizeof(float),
                  sent_by_reduce_scatter(sums, rank(), size()), stream,
                  [&](const CallName& call, cudaStream_t native) {
                    sum_chunk(call, *plan, sums, stack, stream, native);
                  });
}

device::Event NcclCommunicator::all_reduce(const PartialSums& sums, device::Stream& stream) {
  CARTAN_ASSERT(!sums.slots.empty() && !sums.leaves && sums.shard == 0);
  const auto plan = plans_.of(sums, rank(), size(), name());
  float* const sum = sums.slots[0];
  return recorded("all_reduce", static_cast<std::size_t>(sums.count) * sizeof(float),
                  sent_by_all_reduce(sums, rank(), size()), stream,
                  [&](const CallName& call, cudaStream_t native) {
                    float* const own = sum + plan->chunk(sums.count, rank()).begin;
                    sum_chunk(call, *plan, sums, std::span(&own, 1), stream, native);
                    std::vector<ByteView> parts;
                    for (int r = 0; r < size(); ++r) {
                      const LeafRange chunk = plan->chunk(sums.count, r);
                      parts.push_back(std::as_writable_bytes(
                          std::span(sum + chunk.begin, static_cast<std::size_t>(length_of(chunk)))));
                    }
                    gather(call, parts, native);
                  });
}

device::Event NcclCommunicator::sum_integers(std::span<std::int64_t> values, device::Stream& stream) {
  return recorded(
      "sum_integers", values.size_bytes(), 0, stream, [&](const CallName& call, cudaStream_t native) {
        if (size() == 1) return;
        link().run(call, [&](ncclComm_t comm) {
          return ncclAllReduce(values.data(), values.data(), values.size(), ncclInt64, ncclSum, comm, native);
        });
      });
}

device::Event NcclCommunicator::library_reduce_scatter(std::span<float> data, int shard,
                                                       device::Stream& stream) {
  const Index count = std::ssize(data);
  const auto chunk_of = [&](int owner) { return chunk_range(count, owner, size(), shard); };
  const Index each = length_of(chunk_of(0));
  bool regular = true;
  for (int owner = 0; owner < size(); ++owner) {
    const LeafRange chunk = chunk_of(owner);
    regular = regular && chunk.begin == owner * each && length_of(chunk) == each;
  }
  const auto sum = [&](ncclComm_t comm, cudaStream_t native) {
    if (regular)
      return ncclReduceScatter(data.data(), data.data() + rank() * each, narrow<std::size_t>(each),
                               ncclFloat32, ncclSum, comm, native);
    // A group of sums that end at one rank each is a scatter of unequal chunks.
    ncclResult_t result = ncclSuccess;
    for (int owner = 0; owner < size(); ++owner) {
      const LeafRange chunk = chunk_of(owner);
      float* const from = data.data() + chunk.begin;
      if (length_of(chunk) > 0 && is_fine(result))
        result = ncclReduce(from, from, narrow<std::size_t>(length_of(chunk)), ncclFloat32, ncclSum, owner,
                            comm, native);
    }
    return result;
  };
  return recorded("reduce_scatter", data.size_bytes(),
                  sent_by_library_sum(count, rank(), size(), shard, false), stream,
                  [&](const CallName& call, cudaStream_t native) {
                    if (size() == 1 || data.empty()) return;
                    link().run(call, [&](ncclComm_t comm) { return sum(comm, native); });
                  });
}

device::Event NcclCommunicator::library_all_reduce(std::span<float> data, device::Stream& stream) {
  return recorded(
      "all_reduce", data.size_bytes(), sent_by_library_sum(std::ssize(data), rank(), size(), 0, true), stream,
      [&](const CallName& call, cudaStream_t native) {
        if (size() == 1 || data.empty()) return;
        link().run(call, [&](ncclComm_t comm) {
          return ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat32, ncclSum, comm, native);
        });
      });
}

void NcclCommunicator::sum_chunk(const CallName& call, const ReductionPlan& plan, const PartialSums& sums,
                                 std::span<float* const> stack, device::Stream& stream, cudaStream_t native) {
  CARTAN_ASSERT(stack.size() >= static_cast<std::size_t>(std::max(plan.depth_before, plan.depth_after)));
  const Index most = largest_chunk(plan, sums.count);
  if (most == 0) return;
  const std::shared_ptr<ReductionRoom::Place> place = shared_.room->held();
  if (place == nullptr) throw InternalError("{} sums, but allocated no exchange memory", name());
  const Index piece = size() == 1 ? most : piece_for(plan, place->memory.size_bytes(), name());
  auto* const received = place->memory.as<float>();
  const LeafRange mine = plan.chunk(sums.count, rank());
  stream.wait(place->free);
  for (Index round = 0; round * piece < most; ++round) {
    if (size() > 1) exchange(call, plan, sums, round, piece, received, native);
    const LeafRange part = piece_of(mine, round, piece);
    if (length_of(part) == 0) continue;
    std::vector<const float*> values;
    const float* next = received;
    for (const PlannedValue& value : plan.values) {
      const bool is_own = value.rank == rank();
      values.push_back(is_own ? sums.slots[static_cast<std::size_t>(value.slot)] + part.begin : next);
      if (!is_own) next += piece;
    }
    std::vector<float*> entries;
    for (float* entry : stack) entries.push_back(entry + (part.begin - mine.begin));
    fold(plan, values, entries, length_of(part), place->device.ops(), stream);
  }
  place->free = stream.record();
}

void NcclCommunicator::exchange(const CallName& call, const ReductionPlan& plan, const PartialSums& sums,
                                Index round, Index piece, float* received, cudaStream_t stream) {
  const auto part_of = [&](int owner) { return piece_of(plan.chunk(sums.count, owner), round, piece); };
  link().run(call, [&](ncclComm_t comm) {
    ncclResult_t result = ncclSuccess;
    const auto go_on = [&] { return is_fine(result); };
    const auto here = narrow<std::size_t>(length_of(part_of(rank())));
    for (const PlannedValue& value : plan.values) {
      if (value.rank == rank() || here == 0 || !go_on()) continue;
      result = ncclRecv(received, here, ncclFloat32, value.rank, comm, stream);
      received += piece;
    }
    for (int step = 1; step < size(); ++step) {
      const int owner = (rank() + step) % size();
      const LeafRange part = part_of(owner);
      if (length_of(part) == 0) continue;
      for (int slot = 0; slot < plan.slots_of_rank[static_cast<std::size_t>(rank())] && go_on(); ++slot)
        result = ncclSend(sums.slots[static_cast<std::size_t>(slot)] + part.begin,
                          narrow<std::size_t>(length_of(part)), ncclFloat32, owner, comm, stream);
    }
    return result;
  });
}

}  // namespace cartan::comm
