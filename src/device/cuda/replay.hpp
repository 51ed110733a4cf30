// Calls that the host makes on a stream again and again, as CUDA graphs: one launch in place of tens.
//
// A call comes with a key, words that say all about it. Calls are cut into pieces where somebody uses the
// stream for anything else, and after kMostCalls. A piece whose keys came before, all of them and in this
// order, becomes a graph; from then on its calls are only compared, and the graph is launched when all have
// come. Where a call differs, those held back are made as they would have been. Nobody has to say what
// repeats, and a changed address or number cannot be missed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "device/cuda/stream.hpp"

namespace cartan::device::cuda {

/// Not thread-safe, as the stream is not.
class Replay : public HeldWork {
 public:
  using Word = std::uint64_t;
  using Key = std::vector<Word>;
  using Call = std::function<void()>;

  static constexpr std::size_t kLeastCalls = 4;  ///< what a graph pays for
  static constexpr std::size_t kMostCalls = 64;  ///< the GPU must not wait long for its first work
  /// Calls that are remembered, in all pieces: a few micro-batches of a large model, some tens of MiB.
  static constexpr std::size_t kMostHeld = 16384;

  explicit Replay(CudaStream& stream);
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;
  ~Replay() override;

  /// Makes the call, now or by the next flush(). `make` returns the Call, which owns what it needs; it is
  /// asked only where the key is new.
  template <class Make>
  void add(const Key& key, const Make& make) {
    if (!follows(key)) record(key, make());
  }
  void flush() override;

  std::size_t graphs() const;                                ///< made so far and kept
  std::size_t held() const { return held_; }                 ///< calls that are remembered
  std::size_t beginnings() const { return pieces_.size(); }  ///< first calls that are

 private:
  struct Piece;

  bool follows(const Key& key);
  void record(const Key& key, Call call);
  void play(Piece& piece);
  void make_calls(const Piece& piece);
  bool make_graph(Piece& piece);
  void keep(std::unique_ptr<Piece> piece);
  void forget_unused();

  CudaStream& stream_;
  cudaStream_t native_;
  std::unordered_map<Word, std::vector<std::unique_ptr<Piece>>> pieces_;  ///< by their first call
  std::size_t held_ = 0;
  std::uint64_t turn_ = 0;
  bool can_capture_ = true;

  // Of the piece under way: either it is new, or `calls_` calls are held back that begin each candidate.
  std::unique_ptr<Piece> new_;
  std::vector<Piece*> candidates_;
  std::size_t calls_ = 0, words_ = 0;
  bool is_running_ = false;
};

}  // namespace cartan::device::cuda
