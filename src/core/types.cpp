#include "cartan/core/types.hpp"

#include <array>
#include <utility>

#include "cartan/core/error.hpp"

namespace cartan {
namespace {

struct DTypeInfo {
  DType dtype;
  std::size_t size;
  std::string_view name;
};

constexpr std::array<DTypeInfo, 8> kDTypes{{{DType::f32, 4, "fp32"},
                                            {DType::bf16, 2, "bf16"},
                                            {DType::f16, 2, "fp16"},
                                            {DType::f64, 8, "fp64"},
                                            {DType::i32, 4, "int32"},
                                            {DType::i64, 8, "int64"},
                                            {DType::e4m3, 1, "fp8 (e4m3)"},
                                            {DType::e5m2, 1, "fp8 (e5m2)"}}};

const DTypeInfo& info(DType dtype) { return kDTypes.at(static_cast<std::size_t>(dtype)); }

}  // namespace

std::size_t size_of(DType dtype) { return info(dtype).size; }

std::string_view name_of(DType dtype) { return info(dtype).name; }

DType dtype_from_name(std::string_view name) {
  for (const DTypeInfo& entry : kDTypes)
    if (entry.name == name) return entry.dtype;
  throw ConfigError("unknown number format '{}': use fp32, bf16 or fp16", name);
}

}  // namespace cartan
