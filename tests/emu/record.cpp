#include "record.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "kernel_body.hpp"
#include "memory.hpp"

extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start;  // NOLINT: the linker's name

namespace emu {
namespace {

class Recorder {
 public:
  explicit Recorder(const char* path) : file_(std::fopen(path, "wb")) {
    if (file_ == nullptr) {
      std::perror(path);
      std::abort();
    }
  }

  void launch(dim3 grid, dim3 block, std::size_t shared_bytes, const Body& body) {
    put(static_cast<std::uint64_t>(static_cast<const char*>(body.fn) - &__ehdr_start));
    for (const unsigned extent : {grid.x, grid.y, grid.z, block.x, block.y, block.z}) put(extent);
    put(shared_bytes);
    std::array<unsigned char, sizeof body.args> parameters{};
    const unsigned bytes = body.lay_out(body.args, parameters.data());
    put(bytes);
    std::fwrite(parameters.data(), 1, bytes, file_);
    const auto allocations = device_allocations();
    put(allocations.size());
    for (const auto allocation : allocations) {
      put(reinterpret_cast<std::uintptr_t>(allocation.data()));
      put(allocation.size());
    }
    changes();
  }

  /// What differs from the last time.
  void changes() {
    std::vector<const unsigned char*> changed;
    for (const auto allocation : device_allocations()) {
      std::size_t& size = sizes_[allocation.data()];
      if (size != allocation.size())
        known_.erase(known_.lower_bound(allocation.data()),
                     known_.lower_bound(allocation.data() + allocation.size()));
      size = allocation.size();
      const unsigned char* const end = allocation.data() + allocation.size();
      for (const unsigned char* at = allocation.data(); at < end; at += kRecordedPiece) {
        at = next_touched(at, allocation.data());
        if (at >= end) break;
        Piece now{};
        std::memcpy(now.data(), at,
                    std::min<std::size_t>(kRecordedPiece, static_cast<std::size_t>(end - at)));
        Piece& known = known_.try_emplace(at).first->second;
        if (known == now) continue;
        known = now;
        changed.push_back(at);
      }
    }
    put(changed.size());
    for (const unsigned char* const piece : changed) {
      put(reinterpret_cast<std::uintptr_t>(piece));
      std::fwrite(known_[piece].data(), 1, kRecordedPiece, file_);
    }
    std::fflush(file_);
  }

 private:
  using Piece = std::array<unsigned char, kRecordedPiece>;

  /// The piece from `at` on that lies on a page that was ever written: most of the device's workspace never
  /// is.
  static const unsigned char* next_touched(const unsigned char* at, const unsigned char* first) {
    constexpr std::size_t kPage = 4096;
    if (at != first && reinterpret_cast<std::uintptr_t>(at) % kPage >= kRecordedPiece) return at;
    const off_t data = lseek(heap_fd, at - heap.lo, SEEK_DATA);
    if (data < 0) return heap.hi;
    const std::ptrdiff_t ahead = heap.lo + data - at;
    constexpr auto kStep = static_cast<std::ptrdiff_t>(kRecordedPiece);
    return at + ahead / kStep * kStep;
  }

  void put(std::uint64_t number) { std::fwrite(&number, sizeof number, 1, file_); }

  std::FILE* file_;
  // Memory as the file has it; zero where there is no piece.
  std::map<const unsigned char*, Piece> known_;
  std::map<const unsigned char*, std::size_t> sizes_;
};

/// Null without EMU_RECORD. Never destroyed: the progress thread may outlive main.
Recorder* recorder() {
  static Recorder* const made = [] {
    const char* const path = std::getenv("EMU_RECORD");
    return path == nullptr ? nullptr : new Recorder(path);
  }();
  return made;
}

}  // namespace

void record_before(dim3 grid, dim3 block, std::size_t shared_bytes, const Body& body) {
  if (Recorder* const to = recorder()) to->launch(grid, block, shared_bytes, body);
}

void record_after() {
  if (Recorder* const to = recorder()) to->changes();
}

}  // namespace emu
