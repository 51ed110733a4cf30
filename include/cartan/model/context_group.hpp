// Context parallelism: each sequence is cut over the ranks of a group, and attention is what brings them
// together.
//
// The cut is zigzag: of 2 n equal chunks of a sequence, rank r of n holds chunks r and 2 n - 1 - r, one after
// the other, so that causal work is even.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "cartan/model/config.hpp"
#include "cartan/model/tensor_group.hpp"

namespace cartan::model {

/// Sources: Liu et al. 2023, arXiv:2310.01889 (ring); Jacobs et al. 2023, arXiv:2309.14509 (all-to-all).
enum class ContextExchange {
  ring,        ///< keys and values go round while they are used; partial results are merged in fp32
  all_gather,  ///< every rank has all keys and values for the time of one layer's attention
  all_to_all,  ///< every rank has whole sequences of some heads
};
/// Inverse of the key context.exchange. Throws ConfigError.
ContextExchange context_exchange_from_name(std::string_view name);

/// Why sequences of `sequence` tokens of this model (derived) cannot be cut over cp * rows ranks with this
/// exchange, beside tp ranks of tensor parallelism (columns of a grid with so many rows), and what would fit:
/// one sentence that names the keys. Empty where they can.
std::string why_not(const ModelConfig& config, Index sequence, int cp, int tp, ContextExchange exchange,
                    int rows = 1);

struct ContextStreams;

/// The operands of causal attention for this rank's rows: T = sequences * length; the group's sequences have
/// n times this length. H and K: heads and key/value heads that this rank of tensor parallelism has.
struct AttentionOperands {
  device::SequenceShape shape;
  Index heads = 0, kv_heads = 0, head_dim = 0;
  device::ConstMatrix q;     ///< [T, H C]
  device::ConstMatrix k, v;  ///< [T, K C]
  /// Position in the whole sequence of the first token of the same document: for each of the T rows, and
  /// where the group is not alone for all rows of the whole sequences in their order.
  std::span<const std::int32_t> document_start, all_document_start;
};

class ContextGroup {
 public:
  /// A group of one.
  ContextGroup() = default;
  /// `overlap`: the ring's messages travel on streams of their own while the device computes, which calls MPI
  /// from three threads (MPI_THREAD_MULTIPLE). `comm` must live as long as the group and its copies. Not
  /// collective.
  ContextGroup(comm::Communicator& comm, ContextExchange exchange, device::Device& device, bool overlap);

  bool is_alone() const { return comm_ == nullptr; }
  int rank() const { return comm_ == nullptr ? 0 : comm_->rank(); }
  int size() const { return comm_ == nullptr ? 1 : comm_->size(); }

  /// out [T, H C]; log_sum_exp fp32 [T * H], may be absent (no data) where no backward follows. What it holds
  /// is known to backward only: all_to_all has other rows and heads there. all_gather and all_to_all give the
  /// bits of one rank, the ring those of its order of merging. Collective.
  void forward(const AttentionOperands& of, device::Matrix out, device::Vector log_sum_exp,
               const Workplace& work) const;
  /// dq, dk, dv, as q, k, v, from dout and what forward gave. dk and dv are neighbouring columns of one
  /// matrix. Collective.
  void backward(const AttentionOperands& of, device::ConstMatrix out, device::ConstVector log_sum_exp,
                device::ConstMatrix dout, device::Matrix dq, device::Matrix dk, device::Matrix dv,
                const Workplace& work) const;

  /// Attention to keys of which each rank keeps some: `attend` writes what the queries, the same on every
  /// rank, see of those that are here, as Ops::attention_forward does, in fp32 where there are several ranks.
  /// out [T, heads * C] becomes what they see of all: partial results are merged by their log-sum-exp in the
  /// order of ranks, with the same bits on each. Where only one rank has keys that a query sees, its result
  /// stays as it is. Collective.
  using AttendHere = std::function<void(device::Matrix out, device::Vector log_sum_exp)>;
  void attend_to_parts(Index heads, const AttendHere& attend, device::Matrix out,
                       const Workplace& work) const;

 private:
  comm::Communicator* comm_ = nullptr;
  ContextExchange exchange_ = ContextExchange::ring;
  std::shared_ptr<ContextStreams> streams_;  ///< copies of a group share them: calls come one after the other
};

}  // namespace cartan::model
