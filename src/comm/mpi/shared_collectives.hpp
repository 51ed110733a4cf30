// Collectives between ranks of one node: they read each other's operands in shared memory. Operands in
// exchange memory are read where they lie; others pass through a bounded staging area, piece by piece. MPI is
// called only where a wait is long.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/mpi/collectives.hpp"
#include "comm/mpi/control_window.hpp"

namespace cartan::comm {

/// The exchange windows of one communicator that are alive, by number. Thread-safe: the main thread allocates
/// while a stream's thread works.
class ExchangeWindows {
 public:
  /// Collective in the sense that every rank adds in the same order; numbers agree therefore.
  std::uint32_t add(std::unique_ptr<SharedWindow> window);
  /// Takes window `number` out for its owner to destroy.
  std::unique_ptr<SharedWindow> take(std::uint32_t number);

  std::optional<Place> find(const void* data, std::size_t size_bytes) const;
  std::byte* address(int rank, Place place) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<SharedWindow>> windows_;  // by number; null where released
};

class SharedCollectives : public Collectives {
 public:
  /// Collective over `comm`. staging_bytes: of a rank.
  SharedCollectives(MPI_Comm comm, const std::string& comm_name, bool spin, std::size_t staging_bytes);

  /// Shared with the buffers that the communicator hands out.
  const std::shared_ptr<ExchangeWindows>& windows() const { return windows_; }

  int rank() const { return control_.rank(); }
  int size() const { return control_.size(); }

  /// There may be several times as many parts as ranks: part i is then of rank i % size().
  void all_gather_parts(std::span<const ByteView> parts) override;
  void all_to_all(ConstByteView in, ByteView out) override;
  void broadcast(ByteView data, int root) override;
  void reduce(const ReductionPlan& plan, std::span<float* const> slots, Index count,
              std::span<float* const> stack, Reach reach) override;

  /// A reduction whose sums go elsewhere, in steps: open, fold any number of times, close. All are
  /// collective. fold pushes the ranks' values of the elements ranges[rank()] on `stack`, whose entries hold
  /// these elements alone; `ranges` is the same on every rank. The slots must not change before the end.
  void open_reduction(const ReductionPlan& plan, std::span<float* const> slots, Index count) {
    open_reduction(Verb::reduce_scatter, plan, slots, count);
  }
  void fold(const ReductionPlan& plan, std::span<float* const> slots, std::span<const LeafRange> ranges,
            std::span<float* const> stack) {
    fold(plan, slots, ranges, stack, Reach::scatter);
  }
  void close_reduction() { control_.barrier(); }

 private:
  void offer_one(Verb verb, ConstByteView operand, std::size_t bytes, int root, bool matters);
  const std::byte* peer_operand(int rank) const;
  /// One part a rank.
  void gather_staged(std::span<const ByteView> parts);
  /// Rounds over [0, total) through the staging areas: write(offset, bytes, own area) on every rank, then
  /// read(offset, bytes, half) with areas at control_.staging(peer) + half.
  template <class Write, class Read>
  void stage(std::size_t total, std::size_t parts, Write&& write, Read&& read);

  void open_reduction(Verb verb, const ReductionPlan& plan, std::span<float* const> slots, Index count);
  void fold(const ReductionPlan& plan, std::span<float* const> slots, std::span<const LeafRange> ranges,
            std::span<float* const> stack, Reach reach);
  void fold_in_place(const ReductionPlan& plan, std::span<float* const> slots, LeafRange mine,
                     std::span<float* const> stack, Reach reach);
  void fold_staged(const ReductionPlan& plan, std::span<float* const> slots,
                   std::span<const LeafRange> ranges, std::span<float* const> stack, Reach reach);

  ControlWindow control_;
  std::shared_ptr<ExchangeWindows> windows_;
};

}  // namespace cartan::comm
