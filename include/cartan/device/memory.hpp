// Device memory with labels. The ledger knows at any time, and at its peak, how many bytes each kind has: it
// is the figure that `sim` predicts and a real device reports.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "cartan/core/types.hpp"

namespace cartan::device {

enum class MemoryKind {
  parameters,  ///< in the dtype of computing
  gathered,    ///< parameters of other ranks, for as long as they are used
  master,      ///< fp32, where that is not the dtype of computing
  moments,
  gradients,
  activations,
  communication,
  workspace,
  io,
  offloaded  ///< outside of the device's memory: in a file, on the host
};
inline constexpr std::size_t kMemoryKinds = 10;
std::string_view name_of(MemoryKind kind);

/// Bytes by kind.
struct MemoryUsage {
  std::array<std::size_t, kMemoryKinds> bytes{};
  /// Without what is offloaded.
  std::size_t total() const;
  std::size_t of(MemoryKind kind) const { return bytes[static_cast<std::size_t>(kind)]; }
};

/// Counts what is allocated. Thread-safe.
class MemoryLedger {
 public:
  void add(MemoryKind kind, std::size_t bytes);
  void remove(MemoryKind kind, std::size_t bytes) noexcept;
  MemoryUsage current() const;
  /// Usage at the moment when the total was largest.
  MemoryUsage peak() const;

 private:
  mutable std::mutex mutex_;
  MemoryUsage current_, peak_;
};

/// Owns device bytes; move-only. Released by the function it was made with.
class Buffer {
 public:
  using Release = std::function<void(void*)>;

  Buffer() = default;
  /// Takes over `data` and books it in `ledger`, which must outlive the buffer.
  Buffer(void* data, std::size_t size_bytes, MemoryKind kind, MemoryLedger& ledger, Release release);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { reset(); }

  void reset() noexcept;
  /// `what` is given up with the bytes, not before. Needs bytes that are booked somewhere.
  void keep(std::shared_ptr<void> what);
  void* data() const noexcept { return data_; }
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }
  std::size_t size_bytes() const noexcept { return size_bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t size_bytes_ = 0;
  MemoryKind kind_ = MemoryKind::workspace;
  MemoryLedger* ledger_ = nullptr;
  Release release_;
};

}  // namespace cartan::device
