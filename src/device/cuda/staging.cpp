#include "device/cuda/staging.hpp"

#include <algorithm>
#include <cstring>

#include "device/cuda/errors.hpp"

namespace cartan::device::cuda {
namespace {

std::byte* at(void* base, std::size_t offset) { return static_cast<std::byte*>(base) + offset; }
const std::byte* at(const void* base, std::size_t offset) {
  return static_cast<const std::byte*>(base) + offset;
}

}  // namespace

Staging::Staging() {
  for (Piece& piece : pieces_) {
    check(cudaMallocHost(&piece.memory, kPieceBytes), "cudaMallocHost of a staging buffer");
    check(cudaEventCreateWithFlags(&piece.free, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  }
}

Staging::~Staging() {
  for (Piece& piece : pieces_) {
    cudaEventSynchronize(piece.free);
    cudaEventDestroy(piece.free);
    cudaFreeHost(piece.memory);
  }
}

void Staging::copy_in(void* destination, const void* host_source, std::size_t size_bytes,
                      cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  for (std::size_t done = 0; done < size_bytes; done += kPieceBytes) {
    Piece& piece = pieces_[next_++ % pieces_.size()];
    const std::size_t bytes = std::min(kPieceBytes, size_bytes - done);
    check(cudaEventSynchronize(piece.free), "a copy to the device");
    std::memcpy(piece.memory, at(host_source, done), bytes);
    check(cudaMemcpyAsync(at(destination, done), piece.memory, bytes, cudaMemcpyDefault, stream),
          "cudaMemcpyAsync to the device");
    check(cudaEventRecord(piece.free, stream), "cudaEventRecord");
  }
}

void Staging::copy_out(void* host_destination, const void* source, std::size_t size_bytes,
                       cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  const auto bytes_from = [&](std::size_t begin) { return std::min(kPieceBytes, size_bytes - begin); };
  const auto start = [&](std::size_t begin) {
    Piece& piece = pieces_[next_++ % pieces_.size()];
    check(cudaEventSynchronize(piece.free), "a copy from the device");
    check(cudaMemcpyAsync(piece.memory, at(source, begin), bytes_from(begin), cudaMemcpyDefault, stream),
          "cudaMemcpyAsync from the device");
    check(cudaEventRecord(piece.free, stream), "cudaEventRecord");
    return &piece;
  };
  Piece* coming = size_bytes > 0 ? start(0) : nullptr;
  for (std::size_t done = 0; done < size_bytes; done += kPieceBytes) {
    Piece* const here = coming;
    coming = done + kPieceBytes < size_bytes ? start(done + kPieceBytes) : nullptr;
    check(cudaEventSynchronize(here->free), "a copy from the device");
    std::memcpy(at(host_destination, done), here->memory, bytes_from(done));
  }
}

}  // namespace cartan::device::cuda
