// The message-passing data plane. Messages between two ranks carry one tag a verb and arrive in the order in
// which they were sent, so both sides need only agree on that order.
#include "comm/mpi/message_collectives.hpp"

#include <algorithm>

#include "cartan/core/narrow.hpp"
#include "comm/mpi/tags.hpp"

namespace cartan::comm {
namespace {

ConstByteView bytes_of(const float* data, Index count) {
  return std::as_bytes(std::span(data, static_cast<std::size_t>(count)));
}

ByteView writable_bytes_of(float* data, Index count) {
  return std::as_writable_bytes(std::span(data, static_cast<std::size_t>(count)));
}

}  // namespace

void broadcast_bytes(const MessageContext& context, ByteView data, int root, std::string_view verb) {
  while (!data.empty()) {
    const ByteView piece = data.first(std::min(data.size(), context.max_message_bytes));
    Requests requests(context, verb);
    requests.collective([&](MPI_Request* request) {
      return MPI_Ibcast(piece.data(), narrow<int>(piece.size()), MPI_BYTE, root, context.comm, request);
    });
    requests.wait();
    data = data.subspan(piece.size());
  }
}

MessageCollectives::MessageCollectives(const MessageContext& context, std::size_t window_bytes)
    : context_(context), window_bytes_(window_bytes) {
  check(MPI_Comm_rank(context.comm, &rank_), context.name, "set-up");
  check(MPI_Comm_size(context.comm, &size_), context.name, "set-up");
}

void MessageCollectives::all_to_all(ConstByteView in, ByteView out) {
  const std::size_t block = in.size() / static_cast<std::size_t>(size_);
  const auto at = [block](int r) { return static_cast<std::size_t>(r) * block; };
  Requests requests(context_, "all_to_all");
  for (int step = 1; step < size_; ++step) {
    const int from = (rank_ + size_ - step) % size_;
    requests.receive(out.subspan(at(from), block), from, kTagAllToAll);
  }
  for (int step = 1; step < size_; ++step) {
    const int to = (rank_ + step) % size_;
    requests.send(in.subspan(at(to), block), to, kTagAllToAll);
  }
  copy_bytes(in.subspan(at(rank_), block), out.subspan(at(rank_), block));
  requests.wait();
}

void MessageCollectives::broadcast(ByteView data, int root) {
  broadcast_bytes(context_, data, root, "broadcast");
}

void MessageCollectives::reduce(const ReductionPlan& plan, std::span<float* const> slots, Index count,
                                std::span<float* const> stack, Reach reach) {
  // Two pieces are in flight: one is summed while the next one arrives. Every rank computes the same piece
  // size.
  const auto values = std::max<Index>(1, std::ssize(plan.values));
  const Index fitting = static_cast<Index>(window_bytes_ / sizeof(float)) / (2 * values);
  const Index piece = std::max(fitting / device::kSumBlock, Index{1}) * device::kSumBlock;
  Index most = 0;
  for (int r = 0; r < size_; ++r) {
    const LeafRange chunk = plan.chunk(count, r);
    most = std::max(most, chunk.end - chunk.begin);
  }
  const Index rounds = ceil_div(most, piece);
  const Index room = std::min(piece, most) * values;
  window_.resize(std::max(window_.size(), static_cast<std::size_t>(2 * room)));

  const LeafRange mine = plan.chunk(count, rank_);
  Folder folder(plan);
  Requests even(context_, "reduce_scatter"), odd(context_, "reduce_scatter");
  Requests* const in_flight[] = {&even, &odd};
  const auto half = [&](Index round) { return window_.data() + (round % 2) * room; };
  if (rounds > 0) start(even, plan, slots, count, 0, piece, half(0));
  for (Index round = 0; round < rounds; ++round) {
    if (round + 1 < rounds) {
      start(*in_flight[(round + 1) % 2], plan, slots, count, round + 1, piece, half(round + 1));
    }
    in_flight[round % 2]->wait();
    const LeafRange part = piece_of(mine, round, piece);
    const Index length = part.end - part.begin;
    std::vector<const float*> operands;
    for (std::size_t v = 0; v < plan.values.size(); ++v) {
      const PlannedValue& value = plan.values[v];
      operands.push_back(value.rank == rank_ ? slots[static_cast<std::size_t>(value.slot)] + part.begin
                                             : half(round) + static_cast<Index>(v) * length);
    }
    std::vector<float*> outs;
    for (float* entry : stack) outs.push_back(entry + (part.begin - mine.begin));
    folder.fold(operands, outs, {}, length);
  }
  if (reach == Reach::all) gather_chunks(slots[0], count);
}

void MessageCollectives::start(Requests& requests, const ReductionPlan& plan, std::span<float* const> slots,
                               Index count, Index round, Index piece, float* received) {
  const LeafRange mine = piece_of(plan.chunk(count, rank_), round, piece);
  const Index length = mine.end - mine.begin;
  for (std::size_t v = 0; v < plan.values.size(); ++v) {
    const int from = plan.values[v].rank;
    if (from == rank_) continue;
    requests.receive(writable_bytes_of(received + static_cast<Index>(v) * length, length), from, kTagReduce);
  }
  for (int step = 1; step < size_; ++step) {
    const int owner = (rank_ + step) % size_;  // each rank begins elsewhere, so that none is flooded
    const LeafRange part = piece_of(plan.chunk(count, owner), round, piece);
    for (int slot = 0; slot < plan.slots_of_rank[static_cast<std::size_t>(rank_)]; ++slot) {
      requests.send(bytes_of(slots[static_cast<std::size_t>(slot)] + part.begin, part.end - part.begin),
                    owner, kTagReduce);
    }
  }
}

void MessageCollectives::gather_chunks(float* base, Index count) {
  std::vector<ByteView> parts;
  for (int r = 0; r < size_; ++r) {
    const LeafRange chunk = chunk_range(count, r, size_);
    parts.push_back(writable_bytes_of(base + chunk.begin, chunk.end - chunk.begin));
  }
  gather_parts("all_reduce", parts);
}

void MessageCollectives::gather_parts(std::string_view verb, std::span<const ByteView> parts) {
  // One call of MPI where the parts follow each other in memory and its int counts suffice.
  std::byte* base = nullptr;
  std::size_t total = 0;
  bool contiguous = true;
  for (const ByteView& part : parts) {
    if (part.empty()) continue;
    if (base == nullptr) base = part.data();
    contiguous = contiguous && part.data() == base + total;
    total += part.size();
  }
  if (contiguous && total <= context_.max_message_bytes) {
    std::vector<int> sizes, offsets;
    int offset = 0;
    for (const ByteView& part : parts) {
      sizes.push_back(narrow<int>(part.size()));
      offsets.push_back(offset);
      offset += sizes.back();
    }
    Requests requests(context_, verb);
    requests.collective([&](MPI_Request* request) {
      return MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, base, sizes.data(), offsets.data(), MPI_BYTE,
                             context_.comm, request);
    });
    requests.wait();
    return;
  }
  // Else a ring, in which each part travels from neighbour to neighbour.
  const int right = (rank_ + 1) % size_, left = (rank_ + size_ - 1) % size_;
  for (int step = 0; step + 1 < size_; ++step) {
    Requests requests(context_, verb);
    requests.receive(parts[static_cast<std::size_t>((rank_ + size_ - step - 1) % size_)], left, kTagGather);
    requests.send(parts[static_cast<std::size_t>((rank_ + size_ - step) % size_)], right, kTagGather);
    requests.wait();
  }
}

}  // namespace cartan::comm
