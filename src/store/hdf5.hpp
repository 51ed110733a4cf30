// The HDF5 library behind owners and exceptions. Its build is not thread-safe, so whoever uses it holds an
// Hdf5Session.
#pragma once

#include <hdf5.h>

#include <mutex>
#include <string>
#include <string_view>

#include "cartan/core/handle.hpp"
#include "cartan/core/types.hpp"

namespace cartan::store {

struct HidTraits {
  using Raw = hid_t;
  static Raw null() { return -1; }
  static void destroy(Raw id) noexcept;
};
/// Owns any HDF5 identifier: file, dataset, type, space, property list.
using Hid = Handle<HidTraits>;

/// While one exists no other thread of the process uses HDF5, and HDF5 prints nothing.
class Hdf5Session {
 public:
  Hdf5Session();

 private:
  std::unique_lock<std::mutex> lock_;
};

/// The innermost cause on HDF5's error stack, in its words; empties the stack.
std::string hdf5_reason();

/// Pass a returned identifier or status; negative throws "HDF5 could not WHAT: reason", an IoError where the
/// system refused, else an InternalError.
Hid own(hid_t id, std::string_view what);
void check(herr_t status, std::string_view what);

/// The file type of a dtype: IEEE for all but bf16, which is a float of 8 exponent and 7 fraction bits.
/// Little endian.
Hid hdf5_type(DType dtype);

}  // namespace cartan::store
