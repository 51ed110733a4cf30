#include "pending_sources.hpp"

#include <algorithm>
#include <cstring>

#include "findings.hpp"

namespace emu {
namespace {

std::list<PendingSource>& pending = *new std::list<PendingSource>;

std::uint64_t hash_of(const unsigned char* data, std::size_t bytes) {
  std::uint64_t value = 1469598103934665603u;
  const auto mix = [&](std::uint64_t word) {
    value = (value ^ word) * 1099511628211u;
    value ^= value >> 29;
  };
  std::size_t i = 0;
  for (; i + sizeof(std::uint64_t) <= bytes; i += sizeof(std::uint64_t)) {
    std::uint64_t word;
    std::memcpy(&word, data + i, sizeof word);
    mix(word);
  }
  for (; i < bytes; ++i) mix(data[i]);
  return value;
}

bool meets(const PendingSource& source, const void* data, std::size_t bytes) {
  const auto* const first = static_cast<const unsigned char*>(data);
  return source.data < first + bytes && first < source.data + source.bytes;
}

}  // namespace

PendingCopy add_pending_source(const void* data, std::size_t bytes) {
  const auto* const first = static_cast<const unsigned char*>(data);
  return pending.insert(pending.end(), {first, bytes, hash_of(first, bytes)});
}

void end_pending_source(PendingCopy copy) {
  const PendingSource source = *copy;
  pending.erase(copy);
  if (!source.is_rewritten && hash_of(source.data, source.bytes) != source.hash)
    report("pinned memory was changed while a copy from it was pending");
}

bool is_pending_source(const void* data, std::size_t bytes) {
  return std::any_of(pending.begin(), pending.end(),
                     [&](const PendingSource& source) { return meets(source, data, bytes); });
}

void note_rewritten(const void* data, std::size_t bytes) {
  for (PendingSource& source : pending)
    source.is_rewritten = source.is_rewritten || meets(source, data, bytes);
}

}  // namespace emu
