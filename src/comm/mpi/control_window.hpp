// A small shared window with which the ranks of a node agree without MPI calls: a flag a rank for barriers, a
// description of the collective that each rank is in, and a bounded staging area for operands that peers
// cannot reach.
#pragma once

#include <array>
#include <cstdint>

#include "comm/mpi/shared_flag.hpp"
#include "comm/mpi/shared_window.hpp"

namespace cartan::comm {

enum class Verb : std::uint32_t { none, all_gather, all_to_all, broadcast, reduce_scatter, all_reduce };
std::string_view name_of(Verb verb);

/// Where an operand lies: exchange window (its number in the order of allocation) and offset in the rank's
/// part of it.
struct Place {
  std::uint32_t window = 0;
  std::uint64_t offset = 0;
};

/// What one rank brings to a collective.
struct Offer {
  static constexpr std::size_t kMaxPlaces = 128;  // slots: at most 2 log2(leaves)

  Verb verb = Verb::none;
  std::int32_t root = 0;
  std::uint64_t bytes = 0;     ///< must be the same on every rank
  std::uint32_t in_reach = 0;  ///< 1: the operand lies in exchange memory, at `places`
  std::array<Place, kMaxPlaces> places{};
};

class ControlWindow {
 public:
  /// Collective over `comm`.
  ControlWindow(MPI_Comm comm, const std::string& comm_name, bool spin, std::size_t staging_bytes);

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Returns when every rank has called it as often as this one. What a rank wrote to shared memory before is
  /// visible to all after.
  void barrier();

  /// Publishes what this rank brings, meets the others, and checks that all are in the same call. Throws
  /// InternalError that names both calls otherwise, on every rank. Offers may be read until the next barrier.
  void agree(const Offer& offer, std::size_t places);
  const Offer& offer_of(int rank) const;
  bool all_in_reach() const;

  std::byte* staging(int rank) const;
  std::size_t staging_bytes() const { return staging_bytes_; }

 private:
  struct Line;
  Line& line(int rank) const;
  void let_mpi_work() const;

  std::string name_;
  MPI_Comm comm_;
  bool spin_;
  std::size_t staging_bytes_;
  SharedWindow window_;
  int rank_ = 0, size_ = 1;
  std::uint32_t epoch_ = 0;  // barriers so far
};

}  // namespace cartan::comm
