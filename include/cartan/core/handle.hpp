// One move-only owner for each C handle (MPI_Comm, hid_t, ...).
#pragma once

#include <utility>

namespace cartan {

/// Traits: using Raw; static Raw null(); static void destroy(Raw) noexcept.
template <class Traits>
class Handle {
 public:
  using Raw = typename Traits::Raw;

  explicit Handle(Raw raw = Traits::null()) noexcept : raw_(raw) {}
  Handle(Handle&& other) noexcept : raw_(std::exchange(other.raw_, Traits::null())) {}
  Handle& operator=(Handle&& other) noexcept {
    Handle taken(std::move(other));
    std::swap(raw_, taken.raw_);  // the old handle is released here, not at some later time
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { reset(); }

  void reset() noexcept {
    if (raw_ != Traits::null()) Traits::destroy(std::exchange(raw_, Traits::null()));
  }
  Raw get() const noexcept { return raw_; }
  explicit operator bool() const noexcept { return raw_ != Traits::null(); }

 private:
  Raw raw_;
};

}  // namespace cartan
