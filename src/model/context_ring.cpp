// Context parallelism by a ring (Liu et al. 2023, arXiv:2310.01889): blocks of keys and values go from rank
// to rank while the block that is here is used. Of the pairs of a chunk of queries and one of keys, each rank
// has three to compute in the first step and two in every other; partial results are merged in fp32.
//
// In the backward pass the fp32 gradients of a block follow it: each rank adds its part, and after a whole
// turn they are home. Adding the part waits for the neighbour; computing it does not.
#include <array>
#include <utility>

#include "model/context_exchange.hpp"

namespace cartan::model {

using device::ArenaMatrix;
using device::ArenaVector;
using device::AttentionShape;
using device::ConstMatrix;
using device::ConstVector;
using device::Event;
using device::Matrix;
using device::Stream;
using device::Vector;

namespace {

/// A block that goes round: the one that is here, and room for the one that comes. Messages of all travellers
/// of a link are sent and received in the same order on every rank, as MPI and NCCL match them.
class Traveller {
 public:
  Traveller(const ContextLink& link, const Workplace& work, DType dtype, Index rows, Index cols)
      : link_(link),
        work_(work),
        here_(work.arena.matrix(dtype, rows, cols)),
        coming_(work.arena.matrix(dtype, rows, cols)) {}

  const Matrix& here() const { return here_; }

  /// Sends the block to the right and receives the left neighbour's, after all that is enqueued on the
  /// compute stream and beside what follows there, which may read the block, not write it.
  void pass() {
    const Zigzag& cut = link_.cut;
    const int right = (cut.rank + 1) % cut.ranks, left = (cut.rank + cut.ranks - 1) % cut.ranks;
    const Event ready = work_.stream().record();
    sending().wait(ready);
    receiving().wait(ready);
    receiving().wait(sent_);  // it went out of the room that is filled now
    // A send may return only when it is received: in a ring that all start with one nobody would get to
    // receive.
    const auto send = [&] { sent_ = link_.comm.send(bytes_of(here_), right, sending()); };
    if (cut.rank % 2 == 0) send();
    received_ = link_.comm.receive(bytes_of(coming_), left, receiving());
    if (cut.rank % 2 != 0) send();
  }
  /// What has come is here for what is enqueued on the compute stream from now on.
  void arrive() {
    work_.stream().wait(received_);
    std::swap(here_, coming_);
  }
  /// Memory may be given back once the compute stream comes here.
  void settle() { work_.stream().wait(sent_); }

 private:
  Stream& sending() const { return link_.streams == nullptr ? work_.stream() : *link_.streams->sending; }
  Stream& receiving() const { return link_.streams == nullptr ? work_.stream() : *link_.streams->receiving; }

  const ContextLink& link_;
  const Workplace& work_;
  ArenaMatrix here_, coming_;
  Event sent_, received_;
};

/// This rank's K|V, ready to travel.
Traveller keys_and_values(const ContextLink& link, const AttentionOperands& of, const Workplace& work) {
  Traveller kv(link, work, of.k.dtype, of.k.rows, 2 * of.k.cols);
  work.ops().copy(of.k, kv.here().col_block(0, of.k.cols), work.stream());
  work.ops().copy(of.v, kv.here().col_block(of.v.cols, of.v.cols), work.stream());
  return kv;
}

/// A part of the own queries and a part of the block that is here, which some of them may see.
struct Pair {
  int q_part, k_part;
};

std::vector<Pair> visible_pairs(const Zigzag& cut, int owner) {
  std::vector<Pair> pairs;
  for (const int q : Zigzag::kParts) {
    for (const int k : Zigzag::kParts) {
      if (cut.chunk(owner, k) <= cut.chunk(cut.rank, q)) pairs.push_back({q, k});
    }
  }
  return pairs;
}

/// Whose block is here after so many steps.
int owner_at(const Zigzag& cut, int step) { return (cut.rank + cut.ranks - step) % cut.ranks; }

AttentionShape pair_shape(const AttentionOperands& of, const Zigzag& cut, int owner, Pair pair) {
  return attention_shape(of, cut.position(cut.rank, pair.q_part), cut.chunk_rows,
                         cut.position(owner, pair.k_part), cut.chunk_rows);
}

/// dq and the gradients of the block that is here, in fp32. The first part of a sum is written, not added.
class PairGradients {
 public:
  PairGradients(const ContextLink& link, const AttentionOperands& of, const AttentionGradients& gradients,
                const Workplace& work)
      : cut_(link.cut),
        of_(of),
        gradients_(gradients),
        work_(work),
        dq_(work.arena.matrix(DType::f32, of.q.rows, of.q.cols)) {}

  /// dkv receives what the own queries add to the gradients of `owner`'s block. Returns which parts it wrote.
  std::array<bool, 2> compute(const Matrix& block, int owner, const Matrix& dkv) {
    std::array<bool, 2> wrote{};
    for (const Pair pair : visible_pairs(cut_, owner)) {
      bool& adds_q = has_dq_[static_cast<std::size_t>(pair.q_part)];
      bool& adds_k = wrote[static_cast<std::size_t>(pair.k_part)];
      for (Index s = 0; s < of_.shape.sequences; ++s) add(pair, s, block, owner, adds_q, adds_k, dkv);
      adds_q = adds_k = true;
    }
    return wrote;
  }
  void store_dq() const { work_.ops().copy(dq_, gradients_.dq, work_.stream()); }

 private:
  void add(Pair pair, Index sequence, const Matrix& block, int owner, bool adds_q, bool adds_k,
           const Matrix& dkv) {
    const Index q_row = cut_.row(sequence, pair.q_part), k_row = cut_.row(sequence, pair.k_part);
    const KeysAndValues keys(chunk_of(block, k_row, cut_));
    const Matrix sums = chunk_of(dkv, k_row, cut_);
    work_.ops().attention_backward(
        pair_shape(of_, cut_, owner, pair), chunk_of(of_.q, q_row, cut_), keys.k, keys.v,
        chunk_of(gradients_.out, q_row, cut_), statistics_of(gradients_.log_sum_exp, q_row, of_, cut_),
        chunk_of(of_.document_start, q_row, cut_), chunk_of(gradients_.dout, q_row, cut_),
        chunk_of(dq_, q_row, cut_), adds_q, sums.col_block(0, of_.k.cols),
        sums.col_block(of_.k.cols, of_.v.cols), adds_k, work_.stream());
  }

  const Zigzag& cut_;
  const AttentionOperands& of_;
  const AttentionGradients& gradients_;
  const Workplace& work_;
  ArenaMatrix dq_;
  std::array<bool, 2> has_dq_{};
};

}  // namespace

void ring_forward(const ContextLink& link, const AttentionOperands& of, Matrix out, Vector log_sum_exp,
                  const Workplace& work) {
  const Zigzag& cut = link.cut;
  Traveller kv = keys_and_values(link, of, work);
  const ArenaMatrix out_sum = work.arena.matrix(DType::f32, of.q.rows, of.q.cols);
  const ArenaMatrix part = work.arena.matrix(DType::f32, cut.chunk_rows, of.q.cols);
  const ArenaVector part_statistics = work.arena.vector(DType::f32, cut.chunk_rows * of.heads);
  ArenaVector own_statistics;
  if (log_sum_exp.data == nullptr) {
    own_statistics = work.arena.vector(DType::f32, of.q.rows * of.heads);
    log_sum_exp = own_statistics;
  }
  const auto attend = [&](Pair pair, Index sequence, int owner, const Matrix& to, const Vector& statistics) {
    const Index q_row = cut.row(sequence, pair.q_part);
    const KeysAndValues keys(chunk_of(kv.here(), cut.row(sequence, pair.k_part), cut));
    work.ops().attention_forward(pair_shape(of, cut, owner, pair), chunk_of(of.q, q_row, cut), keys.k, keys.v,
                                 chunk_of(of.document_start, q_row, cut), to, statistics, work.stream());
  };
  std::array<bool, 2> has_sum{};
  for (int step = 0; step < cut.ranks; ++step) {
    if (step > 0) kv.arrive();
    if (step + 1 < cut.ranks) kv.pass();
    const int owner = owner_at(cut, step);
    for (const Pair pair : visible_pairs(cut, owner)) {
      const bool adds = std::exchange(has_sum[static_cast<std::size_t>(pair.q_part)], true);
      for (Index s = 0; s < of.shape.sequences; ++s) {
        const Index q_row = cut.row(s, pair.q_part);
        const Matrix sum = chunk_of(out_sum, q_row, cut);
        const Vector statistics = statistics_of(log_sum_exp, q_row, of, cut);
        if (!adds) {
          attend(pair, s, owner, sum, statistics);
          continue;
        }
        attend(pair, s, owner, part, part_statistics);
        work.ops().attention_merge(sum, statistics, part, part_statistics, of.head_dim, work.stream());
      }
    }
  }
  kv.settle();
  work.ops().copy(out_sum, out, work.stream());
}

void ring_backward(const ContextLink& link, const AttentionOperands& of, const AttentionGradients& gradients,
                   const Workplace& work) {
  const Zigzag& cut = link.cut;
  Traveller kv = keys_and_values(link, of, work);
  Traveller dkv(link, work, DType::f32, of.k.rows, 2 * of.k.cols);
  const ArenaMatrix own_part = work.arena.matrix(DType::f32, of.k.rows, 2 * of.k.cols);
  PairGradients pairs(link, of, gradients, work);
  const auto values_of_chunk = [&](const Matrix& m, Index row) {
    const Matrix chunk = chunk_of(m, row, cut);
    return Vector{chunk.data, chunk.dtype, chunk.rows * chunk.cols};
  };
  for (int step = 0; step < cut.ranks; ++step) {
    if (step > 0) kv.arrive();
    if (step + 1 < cut.ranks) kv.pass();
    const auto wrote = pairs.compute(kv.here(), owner_at(cut, step), step == 0 ? dkv.here() : own_part);
    if (step > 0) {
      dkv.arrive();
      for (Index s = 0; s < of.shape.sequences; ++s) {
        for (const int part : Zigzag::kParts) {
          if (!wrote[static_cast<std::size_t>(part)]) continue;
          const Index row = cut.row(s, part);
          work.ops().add(values_of_chunk(dkv.here(), row), values_of_chunk(own_part, row), work.stream());
        }
      }
    }
    dkv.pass();
  }
  dkv.arrive();
  kv.settle();
  dkv.settle();
  work.ops().copy(dkv.here(), neighbouring(gradients.dk, gradients.dv), work.stream());
  pairs.store_dq();
}

}  // namespace cartan::model
