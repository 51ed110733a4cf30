#include "cartan/store/safetensors.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "cartan/core/bfloat16.hpp"
#include "cartan/core/error.hpp"
#include "cartan/core/float16.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/narrow.hpp"

namespace cartan::store {
namespace {

constexpr std::size_t kPrefix = 8;
// A header of more than this is taken for a file of another kind.
constexpr std::uint64_t kMaxHeader = std::uint64_t{100} << 20;
constexpr std::array<std::pair<const char*, DType>, 6> kNames{{{"F32", DType::f32},
                                                               {"BF16", DType::bf16},
                                                               {"F16", DType::f16},
                                                               {"F64", DType::f64},
                                                               {"I32", DType::i32},
                                                               {"I64", DType::i64}}};

const char* dtype_name(DType dtype) {
  return std::find_if(kNames.begin(), kNames.end(), [&](const auto& n) { return n.second == dtype; })->first;
}

// Elements of a shape, or nothing where the product overflows or a dimension is negative.
std::optional<std::size_t> elements_of(const std::vector<Index>& shape) {
  std::size_t elements = 1;
  for (const Index extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(elements, static_cast<std::size_t>(extent), &elements))
      return std::nullopt;
  }
  return elements;
}

template <class T>
T load(std::span<const std::byte> bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

/// Converts elements one by one.
template <class T, class Convert>
void convert(std::span<const std::byte> bytes, float* out, Convert&& to) {
  for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i) out[i] = to(load<T>(bytes, i));
}

/// Sorted by key: an object that keeps the order of its keys compares each new one with all.
using Header = nlohmann::json;

/// A list of at least `least` whole numbers that each fit an Index. What the library makes of a large
/// fraction is not defined.
std::vector<Index> whole_numbers(const Header& entry, const char* key, std::size_t least,
                                 const std::string& tensor, const std::string& where) {
  std::vector<Index> numbers;
  const Header& list = entry.at(key);
  const auto fits = [](const Header& number) {
    return number.is_number_unsigned() && std::in_range<Index>(number.get<std::uint64_t>());
  };
  if (!list.is_array() || list.size() < least || !std::all_of(list.begin(), list.end(), fits))
    throw DataError("{}: tensor {} has {} = {}, expected a list of whole numbers", where, tensor, key,
                    list.dump());
  for (const Header& number : list) numbers.push_back(number.get<Index>());
  return numbers;
}

/// The header; a name twice is an error, which the parser would pass over.
Header parse_header(std::string_view text, const std::string& where) {
  std::unordered_set<std::string> names;
  try {
    return Header::parse(text, [&](int depth, Header::parse_event_t event, const Header& parsed) {
      if (event == Header::parse_event_t::key && depth == 1 &&
          !names.insert(parsed.get<std::string>()).second)
        throw DataError("{}: two tensors have the name {}", where, parsed.get<std::string>());
      return true;
    });
  } catch (const Header::exception& error) {
    throw DataError("{}: the safetensors header is not valid JSON: {}", where, error.what());
  }
}

}  // namespace

void read_floats(const NamedTensor& tensor, Index first, Index count, float* out) {
  const std::size_t size = size_of(tensor.dtype);
  const auto bytes =
      tensor.bytes.subspan(narrow<std::size_t>(first) * size, narrow<std::size_t>(count) * size);
  switch (tensor.dtype) {
    case DType::f32:
      if (!bytes.empty()) std::memcpy(out, bytes.data(), bytes.size());
      return;
    case DType::bf16:
      return convert<std::uint16_t>(bytes, out, [](std::uint16_t bits) { return to_float(BFloat16{bits}); });
    case DType::f16:
      return convert<std::uint16_t>(bytes, out, [](std::uint16_t bits) { return to_float(Float16{bits}); });
    case DType::f64:
      return convert<double>(bytes, out, [](double value) { return static_cast<float>(value); });
    case DType::i32:
      return convert<std::int32_t>(bytes, out, [](std::int32_t value) { return static_cast<float>(value); });
    case DType::i64:
      return convert<std::int64_t>(bytes, out, [](std::int64_t value) { return static_cast<float>(value); });
    case DType::e4m3:
    case DType::e5m2:
      throw DataError("tensor {} is {}, which is not converted", tensor.name, name_of(tensor.dtype));
  }
}

std::string safetensors_header(std::span<const NamedTensor> tensors, const std::string& format) {
  Json json = Json::object();
  if (!format.empty()) json["__metadata__"] = {{"format", format}};
  std::size_t offset = 0;
  for (const NamedTensor& tensor : tensors) {
    const std::size_t bytes = elements_of(tensor.shape).value() * size_of(tensor.dtype);
    json[tensor.name] = Json{{"dtype", dtype_name(tensor.dtype)},
                             {"shape", tensor.shape},
                             {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = json.dump();
  text.resize((text.size() + kPrefix - 1) / kPrefix * kPrefix, ' ');
  std::string header(kPrefix, '\0');
  const std::uint64_t length = text.size();
  std::memcpy(header.data(), &length, sizeof length);
  return header + text;
}

void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors) {
  std::string file = safetensors_header(tensors);
  for (const NamedTensor& tensor : tensors) {
    CARTAN_ASSERT(elements_of(tensor.shape).value_or(0) * size_of(tensor.dtype) == tensor.bytes.size());
    file.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  write_file_atomically(path, file);
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path), file_(path) {
  const std::span<const std::byte> bytes = file_.bytes();
  const std::string where = path.string();
  if (bytes.size() < kPrefix)
    throw DataError("{}: {} bytes, too short for a safetensors file", where, bytes.size());
  const auto length = load<std::uint64_t>(bytes, 0);
  if (length > kMaxHeader || length > bytes.size() - kPrefix)
    throw DataError("{}: no safetensors file, or truncated: its header should have {} bytes, the file has {}",
                    where, length, bytes.size());
  const Header header = parse_header(
      {reinterpret_cast<const char*>(bytes.data()) + kPrefix, static_cast<std::size_t>(length)}, where);
  if (!header.is_object()) throw DataError("{}: the safetensors header is no JSON object", where);
  const std::span<const std::byte> data = bytes.subspan(kPrefix + static_cast<std::size_t>(length));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    try {
      NamedTensor tensor;
      tensor.name = name;
      const auto dtype = entry.at("dtype").get<std::string>();
      const auto known =
          std::find_if(kNames.begin(), kNames.end(), [&](const auto& n) { return n.first == dtype; });
      if (known == kNames.end())
        throw DataError("{}: tensor {} has dtype {}, which cartan does not read", where, name, dtype);
      tensor.dtype = known->second;
      tensor.shape = whole_numbers(entry, "shape", 0, name, where);
      const std::vector<Index> offsets = whole_numbers(entry, "data_offsets", 2, name, where);
      const auto begin = static_cast<std::size_t>(offsets.at(0)),
                 end = static_cast<std::size_t>(offsets.at(1));
      const auto elements = elements_of(tensor.shape);
      if (begin > end || end > data.size() || !elements || *elements > data.size() ||
          *elements * size_of(tensor.dtype) != end - begin)
        throw DataError(
            "{}: tensor {}: bytes {} to {} do not fit its shape or the file's {} bytes of data (truncated?)",
            where, name, begin, end, data.size());
      tensor.bytes = data.subspan(begin, end - begin);
      numbers_.emplace(name, tensors_.size());
      tensors_.push_back(std::move(tensor));
    } catch (const nlohmann::json::exception& error) {
      throw DataError("{}: the entry of tensor {} is wrong: {}", where, name, error.what());
    }
  }
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : tensors_) order.push_back(&tensor);
  std::sort(order.begin(), order.end(),
            [](const NamedTensor* a, const NamedTensor* b) { return a->bytes.data() < b->bytes.data(); });
  for (std::size_t i = 1; i < order.size(); ++i)
    if (order[i - 1]->bytes.data() + order[i - 1]->bytes.size() > order[i]->bytes.data())
      throw DataError("{}: tensors {} and {} overlap", where, order[i - 1]->name, order[i]->name);
}

bool SafetensorsFile::contains(const std::string& name) const { return numbers_.contains(name); }

const NamedTensor& SafetensorsFile::tensor(const std::string& name) const {
  const auto found = numbers_.find(name);
  if (found == numbers_.end()) throw DataError("{}: has no tensor {}", path_.string(), name);
  return tensors_[found->second];
}

std::vector<float> SafetensorsFile::floats(const std::string& name) const {
  const NamedTensor& t = tensor(name);
  std::vector<float> values(t.bytes.size() / size_of(t.dtype));
  read_floats(t, 0, narrow<Index>(values.size()), values.data());
  return values;
}

std::vector<std::int32_t> SafetensorsFile::integers(const std::string& name) const {
  const NamedTensor& t = tensor(name);
  std::vector<std::int32_t> values(t.bytes.size() / size_of(t.dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (t.dtype == DType::i32) {
      values[i] = load<std::int32_t>(t.bytes, i);
    } else if (t.dtype == DType::i64 && std::in_range<std::int32_t>(load<std::int64_t>(t.bytes, i))) {
      values[i] = static_cast<std::int32_t>(load<std::int64_t>(t.bytes, i));
    } else {
      throw DataError("{}: tensor {}: element {} is no 32-bit integer", path_.string(), name, i);
    }
  }
  return values;
}

}  // namespace cartan::store
