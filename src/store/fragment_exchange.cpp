#include "fragment_exchange.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "cartan/comm/node_memory.hpp"
#include "cartan/core/narrow.hpp"

namespace cartan::store {
namespace {

/// Sizes of the messages of each round, known to both sides before the first one.
class RoundSizes {
 public:
  RoundSizes(const Shares& shares, const BlockTable& table, Index rounds, Payload payload,
             comm::Communicator& comm, Agreement& agreement)
      : rounds_(rounds) {
    const auto outgoing = message_bytes(shares, table, comm.size(), rounds, payload);
    incoming_ = exchange_counts(comm, outgoing);
    agreement.attempt([&] {  // slabs that overlap many times could send more than MPI can count
      for (Index round = 0; round < rounds; ++round)
        for (const auto& bytes : {of_round(outgoing, round), of_round(incoming_, round)})
          narrow<int>(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}));
    });
  }
  Index rounds() const { return rounds_; }
  std::vector<std::int64_t> incoming(Index round) const { return of_round(incoming_, round); }

 private:
  /// A round's column of [ranks, rounds].
  std::vector<std::int64_t> of_round(const std::vector<std::int64_t>& all, Index round) const {
    std::vector<std::int64_t> bytes;
    for (auto at = static_cast<std::size_t>(round); at < all.size(); at += static_cast<std::size_t>(rounds_))
      bytes.push_back(all[at]);
    return bytes;
  }

  Index rounds_;
  std::vector<std::int64_t> incoming_;  // [ranks, rounds]
};

class MessageExchange final : public FragmentExchange {
 public:
  MessageExchange(std::span<const TensorInfo> tensors, const BlockTable& table, const Shares& shares,
                  Index rounds, comm::Communicator& comm, Agreement& agreement)
      : tensors_(tensors),
        table_(table),
        shares_(shares),
        comm_(comm),
        sizes_(shares, table, rounds, Payload::data, comm, agreement) {}

  Index rounds() const override { return sizes_.rounds(); }

  void carry(Index round) override {
    const Outgoing outgoing =
        pack_fragments(shares_, table_, comm_.size(), round, rounds(), Payload::data, outgoing_memory_);
    messages_ = exchange(comm_, outgoing, sizes_.incoming(round), incoming_memory_);
  }

  std::vector<BlockRun> blocks() override {
    return assemble_blocks(tensors_, table_, unpack_fragments(messages_, Payload::data), blocks_memory_);
  }

 private:
  std::span<const TensorInfo> tensors_;
  const BlockTable& table_;
  const Shares& shares_;
  comm::Communicator& comm_;
  RoundSizes sizes_;
  std::span<const std::byte> messages_;
  RoundMemory outgoing_memory_, incoming_memory_, blocks_memory_;
};

/// Blocks that an owner completes in a round: what stays in the cache between their holders and the file.
/// Measured with 4 ranks on 2 cores: 2 to 16 are equally fast, 32 are slower.
constexpr Index kHalfBlocks = 8;

/// An owner's part of the memory has two halves for rounds in turn: while the blocks of one are written, the
/// other is filled. In a half, blocks lie as in the file.
class DirectExchange final : public FragmentExchange {
 public:
  DirectExchange(std::span<const TensorInfo> tensors, const BlockTable& table, const Shares& shares,
                 std::unique_ptr<comm::NodeMemory> memory, comm::Communicator& comm, Agreement& agreement)
      : tensors_(tensors),
        table_(table),
        shares_(shares),
        comm_(comm),
        memory_(std::move(memory)),
        sizes_(shares, table, rounds_for(table, comm), Payload::none, comm, agreement) {}

  Index rounds() const override { return sizes_.rounds(); }

  void carry(Index round) override {
    for (int step = 0; step < comm_.size(); ++step) {
      const int owner = (comm_.rank() + step) % comm_.size();
      const LeafRange owned = owned_blocks(table_, owner, comm_.size(), round, rounds());
      for (const Fragment& fragment : fragments_of(shares_, owned))
        std::memcpy(place_of(fragment.block, owned, owner, round) + fragment.begin, fragment.data,
                    fragment.bytes);
    }
    const Outgoing headers =
        pack_fragments(shares_, table_, comm_.size(), round, rounds(), Payload::none, outgoing_memory_);
    messages_ = exchange(comm_, headers, sizes_.incoming(round), incoming_memory_);
    memory_->meet();
    round_ = round;
  }

  std::vector<BlockRun> blocks() override {
    const LeafRange owned = owned_blocks(table_, comm_.rank(), comm_.size(), round_, rounds());
    std::vector<BlockRun> runs;
    for (const Index block : complete_blocks(tensors_, table_, unpack_fragments(messages_, Payload::none)))
      append_block(runs, block, place_of(block, owned, comm_.rank(), round_));
    return runs;
  }

 private:
  /// A rank owns at most one block more than blocks / ranks, rounded down.
  static Index rounds_for(const BlockTable& table, const comm::Communicator& comm) {
    return 1 + (table.blocks() / comm.size()) / kHalfBlocks;
  }

  std::byte* place_of(Index block, LeafRange owned, int owner, Index round) const {
    const auto before = table_.block_begin(block) - table_.block_begin(owned.begin);
    return memory_->part(owner) + static_cast<std::size_t>(round % 2 * kHalfBlocks) * kBlockBytes + before;
  }

  std::span<const TensorInfo> tensors_;
  const BlockTable& table_;
  const Shares& shares_;
  comm::Communicator& comm_;
  std::unique_ptr<comm::NodeMemory> memory_;
  RoundSizes sizes_;
  std::span<const std::byte> messages_;
  Index round_ = 0;
  RoundMemory outgoing_memory_, incoming_memory_;
};

}  // namespace

std::unique_ptr<FragmentExchange> make_fragment_exchange(std::span<const TensorInfo> tensors,
                                                         const BlockTable& table, const Shares& shares,
                                                         comm::Communicator& comm, Agreement& agreement) {
  const auto expected = exchange_counts(comm, message_bytes(shares, table, comm.size(), 1, Payload::data));
  const std::int64_t all = std::accumulate(expected.begin(), expected.end(), std::int64_t{0});
  const Index rounds = comm.max(1 + all / kRoundBytes);
  if (rounds > 1) {
    auto memory = comm::make_node_memory(comm, 2 * kHalfBlocks * kBlockBytes, "writing a checkpoint");
    if (memory != nullptr)
      return std::make_unique<DirectExchange>(tensors, table, shares, std::move(memory), comm, agreement);
  }
  return std::make_unique<MessageExchange>(tensors, table, shares, rounds, comm, agreement);
}

}  // namespace cartan::store
