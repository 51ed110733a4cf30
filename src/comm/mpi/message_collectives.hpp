// Collectives by messages, for groups that span nodes. A reduction in canonical order sends each owner the
// other ranks' values of its chunk and sums them there: the traffic of a ring, in bounded pieces.
#pragma once

#include <vector>

#include "comm/mpi/collectives.hpp"
#include "comm/mpi/requests.hpp"

namespace cartan::comm {

class MessageCollectives : public Collectives {
 public:
  /// `context` must outlive it. window_bytes bounds the received values that a reduction holds at a time, for
  /// two pieces, but a piece is never less than device::kSumBlock floats.
  MessageCollectives(const MessageContext& context, std::size_t window_bytes);

  void all_gather_parts(std::span<const ByteView> parts) override { gather_parts("all_gather", parts); }
  void all_to_all(ConstByteView in, ByteView out) override;
  void broadcast(ByteView data, int root) override;
  void reduce(const ReductionPlan& plan, std::span<float* const> slots, Index count,
              std::span<float* const> stack, Reach reach) override;

 private:
  void start(Requests& requests, const ReductionPlan& plan, std::span<float* const> slots, Index count,
             Index round, Index piece, float* received);
  void gather_chunks(float* base, Index count);
  /// Every rank holds its own of `parts` and receives the others.
  void gather_parts(std::string_view verb, std::span<const ByteView> parts);

  const MessageContext& context_;
  int rank_ = 0, size_ = 1;
  std::size_t window_bytes_;
  std::vector<float> window_;
};

/// Cut into messages of bounded size. Collective.
void broadcast_bytes(const MessageContext& context, ByteView data, int root, std::string_view verb);

}  // namespace cartan::comm
