// Matrix products of tiles on one thread: blocks of the operands are packed into scratch memory as fp32 in
// the layout that oneDNN's kernels read fastest, multiplied there, and the result stays in scratch. Packing
// turns, cuts and converts the operands in the same pass, so a product of bf16 numbers runs at the rate of
// fp32 where the CPU's bf16 instructions are no faster, one of fp16 numbers always, and loses nothing:
// products of 16-bit numbers are exact in fp32.
//
// The sum over depth is cut into blocks whose size depends on the depth only.
#pragma once

#include <memory>
#include <span>

#include "cartan/device/view.hpp"

namespace cartan::device::cpu {

/// A factor of a product as it lies in memory: op(A)[r, c] = A[r, c], or A[c, r] if transposed.
struct Factor {
  const void* data = nullptr;
  DType dtype = DType::f32;
  Index stride = 0;  ///< elements from row to row of A as stored
  bool transposed = false;
};

/// One tile of rows of a product: c [rows, cols] = op(a) [rows, depth] x the common right factor.
struct RowTile {
  Factor a;
  Index rows = 0;
  float* c = nullptr;  ///< in scratch, contiguous
};

class Gemm {
 public:
  static constexpr Index kMaxRows = 256;  ///< of a tile
  static constexpr Index kMaxCols = 384;
  static constexpr Index kMaxDepth = 768;  ///< of one packed block
  /// Tiles with at most so many rows are not worth packing for: oneDNN reads the operands where they
  /// lie (but for fp16).
  static constexpr Index kThinRows = 16;
  /// Scratch bytes that oneDNN itself may use in a call: a copy of a part of an operand that it reads in
  /// place, 262 KiB with AVX-512 where that is deeper than 1024.
  static constexpr std::size_t kLibraryBytes = std::size_t{512} << 10;

  enum class Bf16Products { native, as_fp32 };

  /// For calls with thread = 0 ... threads-1; each thread number is used by one thread at a time.
  Gemm(int threads, Bf16Products bf16_products);
  ~Gemm();

  /// Scratch bytes that multiply needs for packing; multiples of 64.
  std::size_t scratch_bytes(Index max_rows, Index cols, Index depth) const;

  /// tiles[i].c = op(tiles[i].a) op(b) for every tile; b is [depth, cols] and is packed once for all tiles.
  /// scratch: scratch_bytes(largest rows, cols, depth), 64-byte aligned.
  void multiply(int thread, std::byte* scratch, std::span<const RowTile> tiles, const Factor& b, Index cols,
                Index depth);

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace cartan::device::cpu
