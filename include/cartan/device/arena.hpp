// Memory for what lives within a step: activations, their gradients, scratch. Pieces are taken and given back
// in an order that is the same in every step, and each goes to the smallest gap that holds it; so a dry run
// on `sim` tells the bytes that all steps need, and the same places come out of the same calls.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include "cartan/device/device.hpp"
#include "cartan/device/view.hpp"

namespace cartan::device {

class Arena;

/// A piece of an arena; given back when destroyed. Move-only.
class ArenaPiece {
 public:
  ArenaPiece() = default;
  ArenaPiece(Arena& arena, std::size_t offset, void* data) : arena_(&arena), offset_(offset), data_(data) {}
  ArenaPiece(ArenaPiece&& other) noexcept { *this = std::move(other); }
  ArenaPiece& operator=(ArenaPiece&& other) noexcept {
    reset();
    arena_ = std::exchange(other.arena_, nullptr);
    offset_ = other.offset_;
    data_ = std::exchange(other.data_, nullptr);
    return *this;
  }
  ~ArenaPiece() { reset(); }
  void reset() noexcept;
  void* data() const { return data_; }
  explicit operator bool() const { return arena_ != nullptr; }

 private:
  Arena* arena_ = nullptr;
  std::size_t offset_ = 0;
  void* data_ = nullptr;
};

/// A matrix or vector that owns its piece.
struct ArenaMatrix : Matrix {
  ArenaPiece piece;
  void reset() {
    piece.reset();
    static_cast<Matrix&>(*this) = {};
  }
};
struct ArenaVector : Vector {
  ArenaPiece piece;
  void reset() {
    piece.reset();
    static_cast<Vector&>(*this) = {};
  }
};

class Arena {
 public:
  /// Measures: pieces have addresses that must not be followed, and peak() tells what is needed.
  Arena() = default;
  /// Over memory that was allocated for it.
  explicit Arena(Buffer memory);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  /// Throws InternalError if the arena is full: then the dry run was not like the real one.
  ArenaPiece take(std::size_t bytes);
  ArenaMatrix matrix(DType dtype, Index rows, Index cols);
  ArenaVector vector(DType dtype, Index size);
  /// Bytes that the pieces needed at most.
  std::size_t peak() const { return peak_; }

 private:
  friend class ArenaPiece;
  void give_back(std::size_t offset) noexcept;

  Buffer memory_;
  bool is_measuring_ = true;
  std::map<std::size_t, std::size_t> taken_;  ///< offset -> bytes
  std::size_t peak_ = 0;
};

}  // namespace cartan::device
