#include "device/cuda/replay.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "cartan/core/error.hpp"
#include "cartan/core/hash.hpp"
#include "cartan/core/log.hpp"
#include "device/cuda/errors.hpp"

namespace cartan::device::cuda {
namespace {

/// True for as long as it lives.
class Flag {
 public:
  explicit Flag(bool& flag) : flag_(flag) { flag_ = true; }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;
  ~Flag() { flag_ = false; }

 private:
  bool& flag_;
};

// Pieces with the same first call; turns that a piece may go unused before others take its place.
constexpr std::size_t kMostAlike = 256;
constexpr std::uint64_t kTurnsKept = 4096;

Replay::Word hash_of(std::span<const Replay::Word> key) { return hash_bytes(std::as_bytes(key)); }

}  // namespace

struct Replay::Piece {
  Piece() = default;
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;
  ~Piece() {
    if (graph != nullptr) cudaGraphExecDestroy(graph);
  }

  /// Whether call number `call`, whose words start at `at`, has this key.
  bool has(std::size_t call, std::size_t at, const Key& key) const {
    return call < ends.size() && ends[call] == at + key.size() &&
           std::equal(key.begin(), key.end(), words.begin() + static_cast<std::ptrdiff_t>(at));
  }
  void append(std::span<const Word> key, Call call) {
    words.insert(words.end(), key.begin(), key.end());
    ends.push_back(words.size());
    calls.push_back(std::move(call));
  }

  std::unique_ptr<Piece> beginning(std::size_t count) const {
    auto piece = std::make_unique<Piece>();
    for (std::size_t call = 0; call < count; ++call) {
      const std::size_t first = call == 0 ? 0 : ends[call - 1];
      piece->append(std::span(words).subspan(first, ends[call] - first), calls[call]);
    }
    return piece;
  }

  std::vector<Word> words;        ///< the keys, one after another
  std::vector<std::size_t> ends;  ///< of each key in words
  std::vector<Call> calls;
  cudaGraphExec_t graph = nullptr;
  std::uint64_t used = 0;  ///< the last turn
};

Replay::Replay(CudaStream& stream) : stream_(stream), native_(stream.native()) { stream_.hold(this); }

Replay::~Replay() {
  try {
    flush();
  } catch (const std::exception&) {
    // Nobody waits for this work any more.
  }
  stream_.hold(nullptr);
}

std::size_t Replay::graphs() const {
  return std::accumulate(
      pieces_.begin(), pieces_.end(), std::size_t{0}, [](std::size_t sum, const auto& alike) {
        return sum +
               static_cast<std::size_t>(std::count_if(alike.second.begin(), alike.second.end(),
                                                      [](const auto& p) { return p->graph != nullptr; }));
      });
}

bool Replay::follows(const Key& key) {
  if (new_ != nullptr) return false;
  if (calls_ == 0) {
    candidates_.clear();
    if (const auto found = pieces_.find(hash_of(key)); found != pieces_.end())
      for (const auto& piece : found->second) candidates_.push_back(piece.get());
  }
  const Piece* const any = candidates_.empty() ? nullptr : candidates_.front();
  std::erase_if(candidates_, [&](const Piece* piece) { return !piece->has(calls_, words_, key); });
  if (candidates_.empty()) {
    new_ = any == nullptr ? std::make_unique<Piece>() : any->beginning(std::exchange(calls_, 0));
    words_ = 0;
    make_calls(*new_);
    return false;
  }
  ++calls_;
  words_ += key.size();
  if (calls_ == kMostCalls) flush();
  return true;
}

void Replay::record(const Key& key, Call call) {
  {
    const Flag running(is_running_);
    call();
  }
  new_->append(key, std::move(call));
  if (new_->calls.size() == kMostCalls) flush();
}

void Replay::flush() {
  if (is_running_) return;
  if (new_ != nullptr) return keep(std::move(new_));
  const std::size_t calls = std::exchange(calls_, 0);
  words_ = 0;
  if (calls == 0) return;
  const auto whole = std::find_if(candidates_.begin(), candidates_.end(),
                                  [&](const Piece* piece) { return piece->calls.size() == calls; });
  if (whole != candidates_.end()) return play(**whole);
  auto piece = candidates_.front()->beginning(calls);
  make_calls(*piece);
  keep(std::move(piece));
}

void Replay::make_calls(const Piece& piece) {
  const Flag running(is_running_);
  for (const Call& call : piece.calls) call();
}

void Replay::play(Piece& piece) {
  piece.used = ++turn_;
  if (piece.calls.size() < kLeastCalls || (piece.graph == nullptr && !make_graph(piece)))
    return make_calls(piece);
  check(cudaGraphLaunch(piece.graph, native_), "cudaGraphLaunch");
}

bool Replay::make_graph(Piece& piece) {
  if (!can_capture_) return false;
  cudaGraph_t graph = nullptr;
  std::string failure;
  // Other threads go on as they do.
  check(cudaStreamBeginCapture(native_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  try {
    make_calls(piece);
  } catch (const Error& error) {
    failure = error.what();
  }
  const cudaError_t end = cudaStreamEndCapture(native_, &graph);
  try {
    check(end, "cudaStreamEndCapture");
    if (failure.empty()) check(cudaGraphInstantiate(&piece.graph, graph, 0), "cudaGraphInstantiate");
  } catch (const Error& error) {
    if (failure.empty()) failure = error.what();
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (failure.empty()) return true;
  // A library may do what graphs do not know. If the device is at fault, the calls themselves say so.
  cudaGetLastError();
  can_capture_ = false;
  log::warning("device", "no CUDA graphs in this run: {}", failure);
  return false;
}

void Replay::keep(std::unique_ptr<Piece> piece) {
  if (piece->calls.empty()) return;  // the first call was refused
  piece->used = ++turn_;
  const Word first = hash_of(std::span(piece->words).first(piece->ends.front()));
  const auto has_room = [&] {
    const auto alike = pieces_.find(first);
    return (alike == pieces_.end() || alike->second.size() < kMostAlike) &&
           held_ + piece->calls.size() <= kMostHeld;
  };
  if (!has_room()) forget_unused();
  if (!has_room()) return;
  held_ += piece->calls.size();
  pieces_[first].push_back(std::move(piece));
}

void Replay::forget_unused() {
  held_ = 0;
  for (auto& [first, alike] : pieces_) {
    std::erase_if(alike, [&](const auto& piece) { return piece->used + kTurnsKept < turn_; });
    for (const auto& piece : alike) held_ += piece->calls.size();
  }
  std::erase_if(pieces_, [](const auto& entry) { return entry.second.empty(); });
}

}  // namespace cartan::device::cuda
