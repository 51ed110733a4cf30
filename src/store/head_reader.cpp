// Checks the head of a file by its hash before HDF5 sees it, then reads names, shapes and texts through HDF5.
#include <algorithm>
#include <array>
#include <optional>

#include "cartan/core/error.hpp"
#include "cartan/core/hash.hpp"
#include "cartan/core/text.hpp"
#include "file_access.hpp"
#include "hdf5.hpp"
#include "head.hpp"
#include "user_block.hpp"

namespace cartan::store {
namespace {

Hid open_dataset(hid_t file, const std::string& path) {
  return own(H5Dopen2(file, path.c_str(), H5P_DEFAULT), fmt::format("open {}", path));
}

std::vector<Index> shape_of(hid_t dataset) {
  const Hid space = own(H5Dget_space(dataset), "read a shape");
  const int rank = H5Sget_simple_extent_ndims(space.get());
  check(rank, "read a shape");
  std::vector<hsize_t> extents(static_cast<std::size_t>(rank));
  check(H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr), "read a shape");
  return {extents.begin(), extents.end()};
}

std::string read_text(hid_t file, const char* name) {
  const Hid dataset = open_dataset(file, name);
  const Hid type = own(H5Dget_type(dataset.get()), "read a type");
  std::string text(H5Tget_size(type.get()), '\0');
  check(H5Dread(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()), "read a text");
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

std::vector<std::uint64_t> read_checksums(hid_t file) {
  const Hid dataset = open_dataset(file, "checksums");
  const auto shape = shape_of(dataset.get());
  std::vector<std::uint64_t> values(shape.empty() ? 0 : static_cast<std::size_t>(shape[0]));
  if (!values.empty())
    check(H5Dread(dataset.get(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
          "read the checksums");
  return values;
}

std::optional<DType> dtype_of(hid_t type) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64})
    if (H5Tequal(type, hdf5_type(dtype).get()) > 0) return dtype;
  return std::nullopt;
}

/// Reads what the hash has vouched for. Where this throws, the writer did not keep to the format.
void read_structure(hid_t file, const std::filesystem::path& path, HeadContent& head) {
  head.state = parse_json(read_text(file, "state"), path.string() + ", /state");
  for (const std::string& name : split(read_text(file, "tensors"), '\n')) {
    if (name.empty()) continue;
    const Hid dataset = open_dataset(file, name);
    const Hid type = own(H5Dget_type(dataset.get()), "read a type");
    const auto dtype = dtype_of(type.get());
    if (!dtype) throw DataError("{}: tensor {} has a type that cartan does not know", path.string(), name);
    head.tensors.push_back({name, *dtype, shape_of(dataset.get())});
  }
  head.checksums = read_checksums(file);
  const BlockTable table(head.tensors);
  if (head.checksums.size() != static_cast<std::size_t>(table.blocks()))
    throw DataError("{}: {} checksums for {} blocks", path.string(), head.checksums.size(), table.blocks());
  if (head.tensors_begin + table.total_bytes() != head.file_bytes)
    throw DataError("{}: its tensors do not fill the file", path.string());
}

}  // namespace

HeadContent read_head(int fd, const std::filesystem::path& path) {
  const std::uint64_t size = file_size(fd, path);
  std::array<std::byte, kUserBlockBytes + 8> start{};
  const auto available = std::span(start).first(std::min<std::uint64_t>(size, start.size()));
  read_at(fd, path, 0, available);
  const UserBlock mark = decode_user_block(available, path);
  if (size != mark.file_bytes)
    throw DataError("{}: {}: {} bytes, expected {}", path.string(),
                    size < mark.file_bytes ? "truncated" : "something was appended", size, mark.file_bytes);
  if (mark.tensors_begin < kUserBlockBytes || mark.tensors_begin > size)
    throw DataError("{}: damaged: its tensors begin outside of the file", path.string());

  std::vector<std::byte> bytes(mark.tensors_begin - kUserBlockBytes);
  read_at(fd, path, kUserBlockBytes, bytes);
  if (hash_bytes(bytes) != mark.head_hash)
    throw DataError("{}: damaged: its first {} do not match their checksum", path.string(),
                    format_bytes(mark.tensors_begin));

  HeadContent head;
  head.file_bytes = size;
  head.tensors_begin = mark.tensors_begin;
  const Hdf5Session session;
  try {
    const Hid access = own(H5Pcreate(H5P_FILE_ACCESS), "make a property list");
    check(H5Pset_file_locking(access.get(), false, true), "leave out locks");
    const Hid file = own(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), "open the file");
    read_structure(file.get(), path, head);
  } catch (const InternalError& error) {
    throw DataError("{}: not as cartan writes it: {}", path.string(), error.what());
  }
  return head;
}

}  // namespace cartan::store
