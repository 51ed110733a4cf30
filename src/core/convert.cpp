#include "cartan/core/convert.hpp"

#include <cstring>

#include "cartan/core/bfloat16.hpp"
#include "cartan/core/error.hpp"
#include "cartan/core/float16.hpp"

namespace cartan {
namespace {

template <class Narrow, class Convert>
void convert_each(std::span<const float> values, std::span<std::byte> out, const Convert& convert) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Narrow narrow = convert(values[i]);
    std::memcpy(out.data() + i * sizeof narrow, &narrow, sizeof narrow);
  }
}

}  // namespace

void convert_floats(std::span<const float> values, DType dtype, std::span<std::byte> out) {
  CARTAN_ASSERT(out.size() == values.size() * size_of(dtype));
  if (dtype == DType::bf16) {
    convert_each<BFloat16>(values, out, [](float value) { return to_bfloat16(value); });
  } else if (dtype == DType::f16) {
    convert_each<Float16>(values, out, [](float value) { return to_float16(value); });
  } else {
    CARTAN_ASSERT(dtype == DType::f32);
    if (!out.empty()) std::memcpy(out.data(), values.data(), out.size());
  }
}

}  // namespace cartan
