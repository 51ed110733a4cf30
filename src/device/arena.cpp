#include "cartan/device/arena.hpp"

#include <algorithm>
#include <limits>

#include "cartan/core/error.hpp"
#include "cartan/core/narrow.hpp"

namespace cartan::device {
namespace {

constexpr std::size_t kAlignment = 256;
// What a measuring arena hands out: in no process's address space, and aligned.
constexpr std::uintptr_t kNowhere = std::uintptr_t{1} << 61;

}  // namespace

void ArenaPiece::reset() noexcept {
  if (arena_ != nullptr) arena_->give_back(offset_);
  arena_ = nullptr;
  data_ = nullptr;
}

Arena::Arena(Buffer memory) : memory_(std::move(memory)), is_measuring_(false) {}

Arena::~Arena() = default;

ArenaPiece Arena::take(std::size_t bytes) {
  const std::size_t size = std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  std::size_t best = 0, best_gap = std::numeric_limits<std::size_t>::max(), end = 0;
  for (const auto& [offset, taken] : taken_) {
    const std::size_t gap = offset - end;
    if (gap >= size && gap < best_gap) {
      best = end;
      best_gap = gap;
    }
    end = offset + taken;
  }
  if (best_gap == std::numeric_limits<std::size_t>::max()) best = end;
  if (!is_measuring_ && best + size > memory_.size_bytes())
    throw InternalError("the arena of {} bytes is full: {} bytes more are wanted at {}", memory_.size_bytes(),
                        size, best);
  taken_.emplace(best, size);
  peak_ = std::max(peak_, best + size);
  const auto base = is_measuring_ ? kNowhere : reinterpret_cast<std::uintptr_t>(memory_.data());
  return {*this, best, reinterpret_cast<void*>(base + best)};
}

void Arena::give_back(std::size_t offset) noexcept { taken_.erase(offset); }

ArenaMatrix Arena::matrix(DType dtype, Index rows, Index cols) {
  ArenaPiece piece = take(size_of(dtype) * narrow<std::size_t>(rows * cols));
  void* data = piece.data();
  return {as_matrix(data, dtype, rows, cols), std::move(piece)};
}

ArenaVector Arena::vector(DType dtype, Index size) {
  ArenaPiece piece = take(size_of(dtype) * narrow<std::size_t>(size));
  void* data = piece.data();
  return {Vector{data, dtype, size}, std::move(piece)};
}

}  // namespace cartan::device
