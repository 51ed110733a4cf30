// Lays out the HDF5 file and takes its first bytes.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>
#include <system_error>

#include "cartan/core/error.hpp"
#include "cartan/core/hash.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/text.hpp"
#include "cartan/core/version.hpp"
#include "file_access.hpp"
#include "hdf5.hpp"
#include "head.hpp"
#include "user_block.hpp"

namespace cartan::store {
namespace {

constexpr std::uint64_t kAlignment = 4096;  // of the first tensor, so that a reader may map it

/// How datasets are stored: contiguous, with a place from the start and no fill values.
Hid dataset_properties() {
  Hid list = own(H5Pcreate(H5P_DATASET_CREATE), "make a property list");
  check(H5Pset_layout(list.get(), H5D_CONTIGUOUS), "ask for a contiguous layout");
  check(H5Pset_alloc_time(list.get(), H5D_ALLOC_TIME_EARLY), "ask for early allocation");
  check(H5Pset_fill_time(list.get(), H5D_FILL_TIME_NEVER), "ask for no fill values");
  check(H5Pset_obj_track_times(list.get(), false), "leave out times");
  return list;
}

/// Makes the groups above tensors. Not left to HDF5, which stores undefined times in the groups it adds on
/// its own.
class Groups {
 public:
  explicit Groups(hid_t file)
      : file_(file), properties_(own(H5Pcreate(H5P_GROUP_CREATE), "make a property list")) {
    check(H5Pset_obj_track_times(properties_.get(), false), "leave out times");
  }
  void make_above(const std::string& path) {
    for (auto slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
      const std::string group = path.substr(0, slash);
      if (!made_.insert(group).second) continue;
      own(H5Gcreate2(file_, group.c_str(), H5P_DEFAULT, properties_.get(), H5P_DEFAULT),
          fmt::format("make the group {}", group));
    }
  }

 private:
  hid_t file_;
  Hid properties_;
  std::set<std::string> made_;
};

Hid text_type(std::size_t bytes) {
  Hid type = own(H5Tcopy(H5T_C_S1), "copy a type");
  check(H5Tset_size(type.get(), bytes == 0 ? 1 : bytes), "size a type");
  check(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), "lay out a type");
  check(H5Tset_cset(type.get(), H5T_CSET_UTF8), "lay out a type");
  return type;
}

Hid scalar_space() { return own(H5Screate(H5S_SCALAR), "make a space"); }

void add_text_attribute(hid_t file, const char* name, const std::string& text) {
  const Hid type = text_type(text.size()), space = scalar_space();
  const Hid attribute =
      own(H5Acreate2(file, name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), "make an attribute");
  check(H5Awrite(attribute.get(), type.get(), text.c_str()), "write an attribute");
}

void add_number_attribute(hid_t file, const char* name, std::int64_t value) {
  const Hid space = scalar_space();
  const Hid attribute =
      own(H5Acreate2(file, name, H5T_STD_I64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT), "make an attribute");
  check(H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value), "write an attribute");
}

void add_text(hid_t file, hid_t properties, const char* name, const std::string& text) {
  const Hid type = text_type(text.size()), space = scalar_space();
  const Hid dataset = own(
      H5Dcreate2(file, name, type.get(), space.get(), H5P_DEFAULT, properties, H5P_DEFAULT), "make a text");
  check(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.c_str()), "write a text");
}

Hid add_numbers(hid_t file, hid_t properties, const std::string& path, hid_t type,
                std::span<const Index> shape) {
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  const Hid space =
      extents.empty()
          ? scalar_space()
          : own(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), "make a space");
  return own(H5Dcreate2(file, path.c_str(), type, space.get(), H5P_DEFAULT, properties, H5P_DEFAULT),
             fmt::format("make the dataset {}", path));
}

/// An empty file for HDF5 to lay out, on /dev/shm or in TMPDIR: as large as the checkpoint, but sparse, and
/// without a name as soon as HDF5 has opened it. (A memfd would do, but HDF5 refuses names that are links
/// into /proc.)
class Scratch {
 public:
  /// What cannot be kept is found out here: HDF5 1.10 does not survive a file that it cannot finish.
  Scratch(std::uint64_t head_bytes, std::uint64_t file_bytes) {
    std::error_code error;
    const std::filesystem::path folders[] = {"/dev/shm", std::filesystem::temp_directory_path(error)};
    for (const auto& folder : folders) {
      name_ = (folder / "cartan-head-XXXXXX").string();
      fd_ = Descriptor(::mkostemp(name_.data(), O_CLOEXEC));
      named_ = static_cast<bool>(fd_);
      if (fd_ && has_space(fd_.get(), head_bytes) &&
          ::ftruncate(fd_.get(), static_cast<off_t>(file_bytes)) == 0)
        return;
      reason_ = errno;
      forget_name();
    }
    throw IoError("cannot make a scratch file of {} in /dev/shm or {}: {} (set TMPDIR)",
                  format_bytes(file_bytes), folders[1].string(), errno_text(reason_));
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { forget_name(); }

  const std::string& name() const { return name_; }
  int fd() const { return fd_.get(); }
  void forget_name() {
    if (named_) ::unlink(name_.c_str());
    named_ = false;
  }

 private:
  std::string name_;
  Descriptor fd_;
  bool named_ = false;
  int reason_ = 0;
};

struct Content {
  const Json& state;
  std::string state_text, names;
  std::span<const TensorInfo> tensors;
  const BlockTable& table;
};

struct FirstBytes {
  std::vector<std::byte> bytes;
  std::uint64_t checksums_at = 0;
};

/// Makes the file with at least `metadata_bytes` set aside at its front for HDF5's structures. Nothing is
/// returned if that did not hold them all: then some lie between or behind the tensors.
std::optional<FirstBytes> try_layout(const Content& content, std::uint64_t metadata_bytes) {
  const std::uint64_t raw_bytes = content.state_text.size() + content.names.size() +
                                  static_cast<std::uint64_t>(content.table.blocks()) * sizeof(std::uint64_t);
  // HDF5 places user block, structures, texts and checksums one after another; its own alignment would also
  // leave gaps between tensors.
  const std::uint64_t head_bytes =
      (kUserBlockBytes + metadata_bytes + raw_bytes + kAlignment - 1) / kAlignment * kAlignment;
  metadata_bytes = head_bytes - kUserBlockBytes - raw_bytes;
  Scratch scratch(head_bytes, head_bytes + content.table.total_bytes());
  const Hid creation = own(H5Pcreate(H5P_FILE_CREATE), "make a property list");
  check(H5Pset_userblock(creation.get(), kUserBlockBytes), "ask for a user block");
  check(H5Pset_obj_track_times(creation.get(), false), "leave out times");
  const Hid access = own(H5Pcreate(H5P_FILE_ACCESS), "make a property list");
  check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V18), "choose a file format");
  check(H5Pset_meta_block_size(access.get(), metadata_bytes), "set aside space");
  check(H5Pset_small_data_block_size(access.get(), 0), "place small datasets in order");
  check(H5Pset_file_locking(access.get(), false, true), "leave out locks");
  Hid file =
      own(H5Fcreate(scratch.name().c_str(), H5F_ACC_TRUNC, creation.get(), access.get()), "make a file");
  scratch.forget_name();

  add_text_attribute(file.get(), "format", "cartan checkpoint");
  add_number_attribute(file.get(), "format_version", kFormatVersion);
  add_text_attribute(file.get(), "writer", "cartan " + version());
  for (const char* key : {"step", "tokens"})
    if (content.state.is_object() && content.state.contains(key) && content.state[key].is_number_integer())
      add_number_attribute(file.get(), key, content.state[key].get<std::int64_t>());
  add_number_attribute(file.get(), "checksum_block_bytes", kBlockBytes);

  const Hid properties = dataset_properties();
  add_text(file.get(), properties.get(), "state", content.state_text);
  add_text(file.get(), properties.get(), "tensors", content.names);
  FirstBytes first;
  {
    const std::array<Index, 1> blocks{content.table.blocks()};
    const Hid checksums = add_numbers(file.get(), properties.get(), "checksums", H5T_STD_U64LE, blocks);
    if (blocks[0] > 0) first.checksums_at = H5Dget_offset(checksums.get());
  }
  std::optional<std::uint64_t> begin;
  bool in_order = true;
  Groups groups(file.get());
  for (std::size_t i = 0; i < content.tensors.size(); ++i) {
    const TensorInfo& tensor = content.tensors[i];
    groups.make_above(tensor.path);
    const Hid dataset =
        add_numbers(file.get(), properties.get(), tensor.path, hdf5_type(tensor.dtype).get(), tensor.shape);
    if (tensor.bytes() == 0) continue;
    const std::uint64_t offset = H5Dget_offset(dataset.get());
    if (!begin) begin = offset - content.table.tensor_begin(i);
    in_order = in_order && offset == *begin + content.table.tensor_begin(i);
  }
  check(H5Fflush(file.get(), H5F_SCOPE_LOCAL), "write a file");
  file.reset();  // gives the file its size

  const std::uint64_t size = file_size(scratch.fd(), scratch.name());
  if (!begin) begin = size;
  if (!in_order || size != *begin + content.table.total_bytes()) return std::nullopt;
  first.bytes.resize(*begin);
  read_at(scratch.fd(), scratch.name(), 0, first.bytes);
  return first;
}

}  // namespace

Head::Head(const Json& state, std::span<const TensorInfo> tensors, const BlockTable& table) {
  Content content{state, state.dump(1, ' ', false, Json::error_handler_t::replace), "", tensors, table};
  std::uint64_t metadata_bytes = 4096;
  for (const TensorInfo& tensor : tensors) {
    content.names += tensor.path + "\n";
    metadata_bytes += 512 + 2 * tensor.path.size();
  }

  const Hdf5Session session;
  std::optional<FirstBytes> first;
  for (int attempt = 0; !first && attempt < 8; ++attempt, metadata_bytes *= 2)
    first = try_layout(content, metadata_bytes);
  if (!first)
    throw InternalError("HDF5 does not place {} tensors ({}) one after another", tensors.size(),
                        format_bytes(table.total_bytes()));
  bytes_ = std::move(first->bytes);
  checksums_at_ = first->checksums_at;
}

void Head::seal(std::span<const std::uint64_t> checksums, std::uint64_t file_bytes) {
  const auto values = std::as_bytes(checksums);
  CARTAN_ASSERT(checksums_at_ + values.size() <= bytes_.size());
  if (!values.empty()) std::memcpy(bytes_.data() + checksums_at_, values.data(), values.size());
  const std::uint64_t hash = hash_bytes(bytes().subspan(kUserBlockBytes));
  const UserBlockBytes mark =
      encode({.file_bytes = file_bytes, .tensors_begin = bytes_.size(), .head_hash = hash});
  std::memcpy(bytes_.data(), mark.data(), mark.size());
}

}  // namespace cartan::store
