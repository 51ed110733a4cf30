// The shared-memory data plane. Each collective starts with an agreement (who brings what, from where), and
// ends with a barrier after which operands may be overwritten.
#include "comm/mpi/shared_collectives.hpp"

#include <algorithm>
#include <functional>

#include "cartan/core/error.hpp"
#include "cartan/core/narrow.hpp"

namespace cartan::comm {
namespace {

/// The memory from the first to the last of a rank's parts, every size-th of `parts`.
ByteView hull_of(std::span<const ByteView> parts, std::size_t rank, std::size_t size) {
  std::byte *begin = nullptr, *end = nullptr;
  for (std::size_t i = rank; i < parts.size(); i += size) {
    if (parts[i].empty()) continue;
    std::byte* const data = parts[i].data();
    if (begin == nullptr || std::less<>()(data, begin)) begin = data;
    if (end == nullptr || std::less<>()(end, data + parts[i].size())) end = data + parts[i].size();
  }
  return begin == nullptr ? parts[rank] : ByteView(begin, end);
}

}  // namespace

std::uint32_t ExchangeWindows::add(std::unique_ptr<SharedWindow> window) {
  const std::lock_guard lock(mutex_);
  windows_.push_back(std::move(window));
  return narrow<std::uint32_t>(windows_.size() - 1);
}

std::unique_ptr<SharedWindow> ExchangeWindows::take(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  return std::move(windows_.at(number));
}

std::optional<Place> ExchangeWindows::find(const void* data, std::size_t size_bytes) const {
  const std::lock_guard lock(mutex_);
  for (std::size_t number = 0; number < windows_.size(); ++number) {
    const SharedWindow* window = windows_[number].get();
    if (window == nullptr || !window->contains(data, size_bytes)) continue;
    return Place{static_cast<std::uint32_t>(number),
                 static_cast<std::uint64_t>(static_cast<const std::byte*>(data) - window->own())};
  }
  return std::nullopt;
}

std::byte* ExchangeWindows::address(int rank, Place place) const {
  const std::lock_guard lock(mutex_);
  CARTAN_ASSERT(place.window < windows_.size() && windows_[place.window] != nullptr);
  return windows_[place.window]->base(rank) + place.offset;
}

SharedCollectives::SharedCollectives(MPI_Comm comm, const std::string& comm_name, bool spin,
                                     std::size_t staging_bytes)
    : control_(comm, comm_name, spin, staging_bytes), windows_(std::make_shared<ExchangeWindows>()) {}

void SharedCollectives::offer_one(Verb verb, ConstByteView operand, std::size_t bytes, int root,
                                  bool matters) {
  Offer offer;
  offer.verb = verb;
  offer.root = root;
  offer.bytes = bytes;
  const auto place = windows_->find(operand.data(), operand.size());
  offer.in_reach = place || !matters ? 1 : 0;
  if (place) offer.places[0] = *place;
  control_.agree(offer, 1);
}

const std::byte* SharedCollectives::peer_operand(int rank) const {
  return windows_->address(rank, control_.offer_of(rank).places[0]);
}

template <class Write, class Read>
void SharedCollectives::stage(std::size_t total, std::size_t parts, Write&& write, Read&& read) {
  // Two halves in turn: who writes half 0 again has passed the barrier of half 1, before which all had read
  // half 0.
  const std::size_t half_bytes = control_.staging_bytes() / 2;
  const std::size_t step = half_bytes / parts / 64 * 64;
  CARTAN_ASSERT(step > 0);
  std::size_t half = 0;
  for (std::size_t offset = 0; offset < total; offset += step, half = half_bytes - half) {
    const std::size_t length = std::min(step, total - offset);
    write(offset, length, control_.staging(control_.rank()) + half);
    control_.barrier();
    read(offset, length, half);
  }
}

void SharedCollectives::all_gather_parts(std::span<const ByteView> parts) {
  const auto rank = static_cast<std::size_t>(control_.rank()),
             size = static_cast<std::size_t>(control_.size());
  CARTAN_ASSERT(parts.size() % size == 0);
  std::size_t total = 0;
  for (const ByteView& one : parts) total += one.size();
  offer_one(Verb::all_gather, hull_of(parts, rank, size), total, 0, true);
  if (control_.all_in_reach()) {
    for (std::size_t step = 1; step < size; ++step) {
      // Parts lie at the same distances on every rank.
      const std::size_t peer = (rank + step) % size;
      const std::byte* const there = peer_operand(narrow<int>(peer));
      const std::byte* const here = hull_of(parts, peer, size).data();
      for (std::size_t i = peer; i < parts.size(); i += size)
        if (!parts[i].empty()) copy_bytes({there + (parts[i].data() - here), parts[i].size()}, parts[i]);
    }
  } else {
    for (std::size_t first = 0; first < parts.size(); first += size) {
      if (first > 0) control_.barrier();  // the staging areas are free again
      gather_staged(parts.subspan(first, size));
    }
  }
  control_.barrier();
}

void SharedCollectives::gather_staged(std::span<const ByteView> parts) {
  const int rank = control_.rank(), size = control_.size();
  std::size_t largest = 0;
  for (const ByteView& one : parts) largest = std::max(largest, one.size());
  const auto piece = [&](int r, std::size_t offset, std::size_t length) {
    const ByteView part = parts[static_cast<std::size_t>(r)];
    const std::size_t begin = std::min(offset, part.size());
    return part.subspan(begin, std::min(length, part.size() - begin));
  };
  stage(
      largest, 1,
      [&](std::size_t offset, std::size_t length, std::byte* area) {
        const ByteView own = piece(rank, offset, length);
        copy_bytes(own, {area, own.size()});
      },
      [&](std::size_t offset, std::size_t length, std::size_t half) {
        for (int step = 1; step < size; ++step) {
          const int peer = (rank + step) % size;
          const ByteView target = piece(peer, offset, length);
          copy_bytes({control_.staging(peer) + half, target.size()}, target);
        }
      });
}

void SharedCollectives::all_to_all(ConstByteView in, ByteView out) {
  const int rank = control_.rank(), size = control_.size();
  const std::size_t block = in.size() / static_cast<std::size_t>(size);
  const auto at = [block](int r) { return static_cast<std::size_t>(r) * block; };
  offer_one(Verb::all_to_all, in, in.size(), 0, true);
  copy_bytes(in.subspan(at(rank), block), out.subspan(at(rank), block));
  if (control_.all_in_reach()) {
    for (int step = 1; step < size; ++step) {
      const int peer = (rank + step) % size;
      copy_bytes({peer_operand(peer) + at(rank), block}, out.subspan(at(peer), block));
    }
  } else {
    stage(
        block, static_cast<std::size_t>(size),
        [&](std::size_t offset, std::size_t length, std::byte* area) {
          for (int r = 0; r < size; ++r) {
            copy_bytes(in.subspan(at(r) + offset, length),
                       {area + static_cast<std::size_t>(r) * length, length});
          }
        },
        [&](std::size_t offset, std::size_t length, std::size_t half) {
          for (int step = 1; step < size; ++step) {
            const int peer = (rank + step) % size;
            const std::byte* area = control_.staging(peer) + half;
            copy_bytes({area + static_cast<std::size_t>(rank) * length, length},
                       out.subspan(at(peer) + offset, length));
          }
        });
  }
  control_.barrier();
}

void SharedCollectives::broadcast(ByteView data, int root) {
  const bool is_root = control_.rank() == root;
  offer_one(Verb::broadcast, data, data.size(), root, is_root);
  if (control_.all_in_reach()) {
    if (!is_root) copy_bytes({peer_operand(root), data.size()}, data);
  } else {
    stage(
        data.size(), 1,
        [&](std::size_t offset, std::size_t length, std::byte* area) {
          if (is_root) copy_bytes(data.subspan(offset, length), {area, length});
        },
        [&](std::size_t offset, std::size_t length, std::size_t half) {
          if (!is_root) copy_bytes({control_.staging(root) + half, length}, data.subspan(offset, length));
        });
  }
  control_.barrier();
}

void SharedCollectives::reduce(const ReductionPlan& plan, std::span<float* const> slots, Index count,
                               std::span<float* const> stack, Reach reach) {
  std::vector<LeafRange> chunks;
  chunks.reserve(narrow<std::size_t>(control_.size()));
  for (int r = 0; r < control_.size(); ++r) chunks.push_back(plan.chunk(count, r));
  open_reduction(reach == Reach::all ? Verb::all_reduce : Verb::reduce_scatter, plan, slots, count);
  fold(plan, slots, chunks, stack, reach);
  close_reduction();
}

void SharedCollectives::open_reduction(Verb verb, const ReductionPlan& plan, std::span<float* const> slots,
                                       Index count) {
  const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
  const int used = plan.slots_of_rank[static_cast<std::size_t>(control_.rank())];
  const auto offered =
      static_cast<std::size_t>(std::max(used, 1));  // slots[0] receives, also where it holds nothing
  CARTAN_ASSERT(offered <= slots.size());
  Offer offer;
  offer.verb = verb;
  offer.bytes = bytes;
  offer.in_reach = 1;
  for (std::size_t i = 0; i < offered; ++i) {
    const auto place = windows_->find(slots[i], bytes);
    if (place) {
      offer.places[i] = *place;
    } else {
      offer.in_reach = 0;
    }
  }
  control_.agree(offer, offered);
}

void SharedCollectives::fold(const ReductionPlan& plan, std::span<float* const> slots,
                             std::span<const LeafRange> ranges, std::span<float* const> stack, Reach reach) {
  if (control_.all_in_reach()) {
    fold_in_place(plan, slots, ranges[static_cast<std::size_t>(control_.rank())], stack, reach);
  } else {
    fold_staged(plan, slots, ranges, stack, reach);
  }
}

void SharedCollectives::fold_in_place(const ReductionPlan& plan, std::span<float* const> slots,
                                      LeafRange mine, std::span<float* const> stack, Reach reach) {
  // The owner of a chunk is the only one who touches it, in any rank's memory: it reads all slots there and,
  // for all_reduce, writes the sum to every rank's slots[0], whose cache lines it holds from reading them.
  const int rank = control_.rank(), size = control_.size();
  const auto chunk_of = [&](int r, int slot) {
    std::byte* start =
        r == rank ? reinterpret_cast<std::byte*>(slots[static_cast<std::size_t>(slot)])
                  : windows_->address(r, control_.offer_of(r).places[static_cast<std::size_t>(slot)]);
    return reinterpret_cast<float*>(start) + mine.begin;
  };
  std::vector<const float*> operands;
  for (const PlannedValue& value : plan.values) operands.push_back(chunk_of(value.rank, value.slot));
  std::vector<float*> further;
  if (reach == Reach::all) {
    for (int step = 1; step < size; ++step) further.push_back(chunk_of((rank + step) % size, 0));
  }
  Folder(plan).fold(operands, stack, further, mine.end - mine.begin);
}

void SharedCollectives::fold_staged(const ReductionPlan& plan, std::span<float* const> slots,
                                    std::span<const LeafRange> ranges, std::span<float* const> stack,
                                    Reach reach) {
  // Rounds over pieces of the chunks. A staging area holds this rank's values of every owner's piece, then
  // the sum of its own piece.
  const int rank = control_.rank(), size = control_.size();
  const Index most_slots = plan.most_slots();
  const auto room = static_cast<Index>(control_.staging_bytes() / sizeof(float));
  const Index piece = room / (size * most_slots + 1) / 16 * 16;
  CARTAN_ASSERT(piece > 0);
  const auto area = [&](int r) { return reinterpret_cast<float*>(control_.staging(r)); };
  const auto values_at = [&](int r, int owner, Index slot) {
    return area(r) + (owner * most_slots + slot) * piece;
  };
  const auto sum_at = [&](int r) { return area(r) + size * most_slots * piece; };
  const auto copy = [](const float* from, float* to, LeafRange part) {
    if (part.end > part.begin) std::copy_n(from, part.end - part.begin, to);
  };

  Index most = 0;
  for (const LeafRange& range : ranges) most = std::max(most, range.end - range.begin);
  const LeafRange mine = ranges[static_cast<std::size_t>(rank)];
  Folder folder(plan);
  for (Index first = 0; first < most; first += piece) {
    const auto piece_of = [&](int owner) {
      const LeafRange chunk = ranges[static_cast<std::size_t>(owner)];
      const Index begin = std::min(chunk.begin + first, chunk.end);
      return LeafRange{begin, std::min(begin + piece, chunk.end)};
    };
    for (int owner = 0; owner < size; ++owner) {
      const LeafRange part = piece_of(owner);
      for (int slot = 0; slot < plan.slots_of_rank[static_cast<std::size_t>(rank)]; ++slot) {
        copy(slots[static_cast<std::size_t>(slot)] + part.begin, values_at(rank, owner, slot), part);
      }
    }
    control_.barrier();
    const LeafRange part = piece_of(rank);
    std::vector<const float*> operands;
    for (const PlannedValue& value : plan.values) operands.push_back(values_at(value.rank, rank, value.slot));
    std::vector<float*> entries;
    for (float* entry : stack) entries.push_back(entry + (part.begin - mine.begin));
    folder.fold(operands, entries, {}, part.end - part.begin);
    if (reach == Reach::all) copy(entries[0], sum_at(rank), part);
    control_.barrier();
    if (reach != Reach::all) continue;
    for (int owner = 0; owner < size; ++owner) {
      if (owner != rank) copy(sum_at(owner), slots[0] + piece_of(owner).begin, piece_of(owner));
    }
  }
}

}  // namespace cartan::comm
