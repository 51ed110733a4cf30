// Atomic operations, fences and hinted accesses of CUDA C++. Fibers do not interrupt each other, so a plain
// read-modify-write is atomic; the checker has to be told, or it would see a race.
#pragma once

#include <algorithm>
#include <concepts>

#include "thread.hpp"

namespace emu {

template <class T>
concept AtomicInteger = std::integral<T> &&(sizeof(T) == 4 || sizeof(T) == 8);
template <class T>
concept AtomicNumber = AtomicInteger<T> || std::same_as<T, float> || std::same_as<T, double>;

/// Replaces a number by change(number); what it was.
template <class T, class Change>
__attribute__((no_sanitize("thread"))) T replace_atomically(T* number, const Change& change) {
  note_atomic(number, sizeof(T));
  const T old = *number;
  *number = change(old);
  return old;
}

}  // namespace emu

template <emu::AtomicNumber T>
T atomicAdd(T* number, std::type_identity_t<T> value) {
  return emu::replace_atomically(number, [=](T old) { return old + value; });
}
template <emu::AtomicNumber T>
T atomicExch(T* number, std::type_identity_t<T> value) {
  return emu::replace_atomically(number, [=](T) { return value; });
}
template <emu::AtomicInteger T>
T atomicSub(T* number, std::type_identity_t<T> value) {
  return emu::replace_atomically(number, [=](T old) { return old - value; });
}
template <emu::AtomicInteger T>
T atomicMax(T* number, std::type_identity_t<T> value) {
  return emu::replace_atomically(number, [=](T old) { return std::max(old, value); });
}
template <emu::AtomicInteger T>
T atomicMin(T* number, std::type_identity_t<T> value) {
  return emu::replace_atomically(number, [=](T old) { return std::min(old, value); });
}
template <emu::AtomicInteger T>
T atomicAnd(T* number, std::type_identity_t<T> value) {
  return emu::replace_atomically(number, [=](T old) { return old & value; });
}
template <emu::AtomicInteger T>
T atomicOr(T* number, std::type_identity_t<T> value) {
  return emu::replace_atomically(number, [=](T old) { return old | value; });
}
template <emu::AtomicInteger T>
T atomicXor(T* number, std::type_identity_t<T> value) {
  return emu::replace_atomically(number, [=](T old) { return old ^ value; });
}
template <emu::AtomicInteger T>
T atomicCAS(T* number, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return emu::replace_atomically(number, [=](T old) { return old == expected ? value : old; });
}

// Memory of the emulator is never out of order.
inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T __ldcs(const T* from) {
  return *from;
}
template <class T>
void __stcs(T* to, std::type_identity_t<T> value) {
  *to = value;
}
