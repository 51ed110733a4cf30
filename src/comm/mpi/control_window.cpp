// Barriers and agreement by flags in shared memory.
#include "comm/mpi/control_window.hpp"

#include <algorithm>
#include <new>

#include "cartan/core/error.hpp"
#include "cartan/core/text.hpp"
#include "comm/mpi/check.hpp"
#include "comm/mpi/tags.hpp"

namespace cartan::comm {

/// What one rank writes and its peers read. The flag has a cache line of its own.
struct ControlWindow::Line {
  alignas(64) SharedFlag arrived;
  alignas(64) Offer offer;
};

std::string_view name_of(Verb verb) {
  static constexpr std::array<std::string_view, 6> names{"nothing",   "all_gather",     "all_to_all",
                                                         "broadcast", "reduce_scatter", "all_reduce"};
  return names.at(static_cast<std::size_t>(verb));
}

ControlWindow::ControlWindow(MPI_Comm comm, const std::string& comm_name, bool spin,
                             std::size_t staging_bytes)
    : name_(comm_name),
      comm_(comm),
      spin_(spin),
      staging_bytes_(staging_bytes),
      window_(comm, comm_name, sizeof(Line) + staging_bytes, "the control window") {
  check(MPI_Comm_rank(comm, &rank_), comm_name, "set-up");
  check(MPI_Comm_size(comm, &size_), comm_name, "set-up");
  new (window_.own()) Line;  // the staging area stays untouched: it takes memory only where it is used
  check(MPI_Barrier(comm), comm_name, "set-up");
}

void ControlWindow::barrier() {
  ++epoch_;
  line(rank_).arrived.advance(epoch_);
  for (int step = 1; step < size_; ++step)
    line((rank_ + step) % size_).arrived.wait(epoch_, spin_, [this] { let_mpi_work(); });
}

void ControlWindow::let_mpi_work() const {
  // A message may count as sent although a part of it waits here for room in the network. It must go on its
  // way while this rank waits for another one that waits, through others perhaps, for that message.
  int found = 0;
  check(MPI_Iprobe(MPI_ANY_SOURCE, kTagNothing, comm_, &found, MPI_STATUS_IGNORE), name_, "waiting");
}

void ControlWindow::agree(const Offer& offer, std::size_t places) {
  CARTAN_ASSERT(places <= Offer::kMaxPlaces);
  Offer& mine = line(rank_).offer;
  mine.verb = offer.verb;
  mine.root = offer.root;
  mine.bytes = offer.bytes;
  mine.in_reach = offer.in_reach;
  std::copy_n(offer.places.begin(), places, mine.places.begin());
  barrier();
  for (int r = 0; r < size_; ++r) {
    const Offer& other = offer_of(r);
    if (other.verb == offer.verb && other.bytes == offer.bytes && other.root == offer.root) continue;
    throw InternalError(
        "ranks of {} are in different calls: rank {} in {} ({}, root {}), rank {} in {} ({}, root {})", name_,
        rank_, name_of(offer.verb), format_bytes(offer.bytes), offer.root, r, name_of(other.verb),
        format_bytes(other.bytes), other.root);
  }
}

const Offer& ControlWindow::offer_of(int rank) const { return line(rank).offer; }

bool ControlWindow::all_in_reach() const {
  for (int r = 0; r < size_; ++r) {
    if (offer_of(r).in_reach == 0) return false;
  }
  return true;
}

std::byte* ControlWindow::staging(int rank) const { return window_.base(rank) + sizeof(Line); }

ControlWindow::Line& ControlWindow::line(int rank) const {
  return *std::launder(reinterpret_cast<Line*>(window_.base(rank)));
}

}  // namespace cartan::comm
