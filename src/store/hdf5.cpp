#include "hdf5.hpp"

#include "cartan/core/error.hpp"

namespace cartan::store {
namespace {

std::mutex& library_mutex() {
  static std::mutex mutex;
  return mutex;
}

herr_t first_description(unsigned, const H5E_error2_t* entry, void* out) {
  auto& text = *static_cast<std::string*>(out);
  if (text.empty() && entry->desc != nullptr) text = entry->desc;
  return 0;
}

/// Sign bit on top, then `exponent` bits, then `mantissa` bits.
Hid small_float(std::size_t exponent, std::size_t mantissa, std::size_t bias) {
  Hid type = own(H5Tcopy(H5T_IEEE_F32LE), "copy a type");
  check(H5Tset_fields(type.get(), exponent + mantissa, mantissa, exponent, 0, mantissa), "lay out a type");
  check(H5Tset_precision(type.get(), 1 + exponent + mantissa), "lay out a type");
  check(H5Tset_size(type.get(), 2), "lay out a type");
  check(H5Tset_ebias(type.get(), bias), "lay out a type");
  return type;
}

/// HDF5 quotes errno where the system refused something; anything else it was not told to do is our fault.
[[noreturn]] void fail(std::string_view what) {
  const std::string reason = hdf5_reason();
  if (reason.find("errno = ") != std::string::npos) throw IoError("HDF5 could not {}: {}", what, reason);
  throw InternalError("HDF5 could not {}: {}", what, reason);
}

}  // namespace

void HidTraits::destroy(Raw id) noexcept { H5Idec_ref(id); }

Hdf5Session::Hdf5Session() : lock_(library_mutex()) {
  H5open();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

std::string hdf5_reason() {
  std::string text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, first_description, &text);
  H5Eclear2(H5E_DEFAULT);
  return text.empty() ? "no reason given" : text;
}

Hid own(hid_t id, std::string_view what) {
  if (id < 0) fail(what);
  return Hid(id);
}

void check(herr_t status, std::string_view what) {
  if (status < 0) fail(what);
}

Hid hdf5_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return own(H5Tcopy(H5T_IEEE_F32LE), "copy a type");
    case DType::f64:
      return own(H5Tcopy(H5T_IEEE_F64LE), "copy a type");
    case DType::i32:
      return own(H5Tcopy(H5T_STD_I32LE), "copy a type");
    case DType::i64:
      return own(H5Tcopy(H5T_STD_I64LE), "copy a type");
    case DType::f16:
      return small_float(5, 10, 15);
    case DType::bf16:
      return small_float(8, 7, 127);
    case DType::e4m3:
    case DType::e5m2:
      break;
  }
  throw InternalError("dtype {} has no form in HDF5", static_cast<int>(dtype));
}

}  // namespace cartan::store
