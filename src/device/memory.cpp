// Bookkeeping of device memory.
#include "cartan/device/memory.hpp"

#include <numeric>
#include <utility>

#include "cartan/core/error.hpp"

namespace cartan::device {

std::string_view name_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::parameters:
      return "parameters";
    case MemoryKind::gradients:
      return "gradients";
    case MemoryKind::gathered:
      return "gathered";
    case MemoryKind::master:
      return "master";
    case MemoryKind::moments:
      return "moments";
    case MemoryKind::activations:
      return "activations";
    case MemoryKind::workspace:
      return "workspace";
    case MemoryKind::communication:
      return "communication";
    case MemoryKind::io:
      return "io";
    case MemoryKind::offloaded:
      return "offloaded";
  }
  throw InternalError("memory kind {} has no name", static_cast<int>(kind));
}

std::size_t MemoryUsage::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}) - of(MemoryKind::offloaded);
}

void MemoryLedger::add(MemoryKind kind, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  current_.bytes[static_cast<std::size_t>(kind)] += bytes;
  if (current_.total() > peak_.total()) peak_ = current_;
}

void MemoryLedger::remove(MemoryKind kind, std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  current_.bytes[static_cast<std::size_t>(kind)] -= bytes;
}

MemoryUsage MemoryLedger::current() const {
  const std::lock_guard lock(mutex_);
  return current_;
}

MemoryUsage MemoryLedger::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

Buffer::Buffer(void* data, std::size_t size_bytes, MemoryKind kind, MemoryLedger& ledger, Release release)
    : data_(data), size_bytes_(size_bytes), kind_(kind), ledger_(&ledger), release_(std::move(release)) {
  ledger.add(kind, size_bytes);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      kind_(other.kind_),
      ledger_(std::exchange(other.ledger_, nullptr)),
      release_(std::exchange(other.release_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  reset();
  data_ = std::exchange(other.data_, nullptr);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  kind_ = other.kind_;
  ledger_ = std::exchange(other.ledger_, nullptr);
  release_ = std::exchange(other.release_, nullptr);
  return *this;
}

void Buffer::keep(std::shared_ptr<void> what) {
  CARTAN_ASSERT(ledger_ != nullptr);
  release_ = [release = std::move(release_), what = std::move(what)](void* data) {
    if (release) release(data);
  };
}

void Buffer::reset() noexcept {
  if (ledger_ == nullptr) return;
  if (release_) release_(data_);
  ledger_->remove(kind_, size_bytes_);
  data_ = nullptr;
  size_bytes_ = 0;
  ledger_ = nullptr;
  release_ = nullptr;
}

}  // namespace cartan::device
