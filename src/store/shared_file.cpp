#include "shared_file.hpp"

#include <fcntl.h>
#include <mpi.h>

#include <cerrno>
#include <utility>

#include "cartan/core/error.hpp"
#include "cartan/core/handle.hpp"
#include "cartan/core/narrow.hpp"
#include "file_access.hpp"
#include "group.hpp"
#include "mpi_calls.hpp"

namespace cartan::store {
namespace {

struct InfoTraits {
  using Raw = MPI_Info;
  static Raw null() { return MPI_INFO_NULL; }
  static void destroy(Raw info) noexcept { MPI_Info_free(&info); }
};
struct TypeTraits {
  using Raw = MPI_Datatype;
  static Raw null() { return MPI_DATATYPE_NULL; }
  static void destroy(Raw type) noexcept { MPI_Type_free(&type); }
};
using Info = Handle<InfoTraits>;
using Type = Handle<TypeTraits>;

Info make_hints(const std::vector<std::string>& hints) {
  MPI_Info raw = MPI_INFO_NULL;
  check_mpi(MPI_Info_create(&raw), "make an info object");
  Info info(raw);
  MPI_Info_set(info.get(), "romio_cb_write", "disable");
  MPI_Info_set(info.get(), "romio_ds_write",
               "disable");  // nor read, modify and write back: others write between
  for (const std::string& hint : hints) {
    const auto equals = hint.find('=');
    if (equals == 0 || equals == std::string::npos)
      throw ConfigError("MPI-IO hint \"{}\": expected KEY=VALUE, as striping_factor=8", hint);
    check_mpi(MPI_Info_set(info.get(), hint.substr(0, equals).c_str(), hint.substr(equals + 1).c_str()),
              fmt::format("take the hint {}", hint));
  }
  return info;
}

Type make_type(const std::vector<int>& lengths, const std::vector<MPI_Aint>& places) {
  MPI_Datatype raw = MPI_DATATYPE_NULL;
  check_mpi(
      MPI_Type_create_hindexed(narrow<int>(lengths.size()), lengths.data(), places.data(), MPI_BYTE, &raw),
      "describe pieces of memory");
  Type type(raw);
  check_mpi(MPI_Type_commit(&raw), "describe pieces of memory");
  return type;
}

class PlainFile final : public SharedFile {
 public:
  explicit PlainFile(std::filesystem::path path)
      : path_(std::move(path)), fd_(::open(path_.c_str(), O_WRONLY | O_CLOEXEC)) {
    if (!fd_) throw IoError("cannot open {}: {}", path_.string(), errno_text(errno));
  }
  bool collective() const override { return false; }
  void write(std::span<const Piece> pieces) override {
    for (const Piece& piece : pieces) write_at(fd_.get(), path_, piece.position, {piece.data, piece.bytes});
  }
  void sync_and_close() override {
    sync_file(fd_.get(), path_);
    fd_.reset();
  }

 private:
  std::filesystem::path path_;
  Descriptor fd_;
};

class MpiFile final : public SharedFile {
 public:
  MpiFile(std::filesystem::path path, MPI_File file, Info hints)
      : path_(std::move(path)), file_(file), hints_(std::move(hints)) {}

  bool collective() const override { return true; }

  void write(std::span<const Piece> pieces) override {
    std::vector<int> lengths;
    std::vector<MPI_Aint> in_file, in_memory;
    MPI_Count bytes = 0;
    for (const Piece& piece : pieces) {
      lengths.push_back(narrow<int>(piece.bytes));
      in_file.push_back(static_cast<MPI_Aint>(piece.position));
      in_memory.push_back(reinterpret_cast<MPI_Aint>(piece.data));
      bytes += static_cast<MPI_Count>(piece.bytes);
    }
    // Types of no bytes confuse MPI-IO, so a rank that has nothing says so by the count.
    const Type view = pieces.empty() ? Type() : make_type(lengths, in_file);
    const Type memory = pieces.empty() ? Type() : make_type(lengths, in_memory);
    const MPI_Datatype file_type = pieces.empty() ? MPI_BYTE : view.get();
    const MPI_Datatype memory_type = pieces.empty() ? MPI_BYTE : memory.get();
    // Both calls are made whatever the first one says: the other ranks make them too.
    const int viewed = MPI_File_set_view(file_, 0, MPI_BYTE, file_type, "native", hints_.get());
    MPI_Status status{};
    const int written =
        MPI_File_write_at_all(file_, 0, MPI_BOTTOM, pieces.empty() ? 0 : 1, memory_type, &status);
    for (const int code : {viewed, written})
      if (code != MPI_SUCCESS) fail(pieces, mpi_reason(code));
    MPI_Count done = 0;
    check_mpi(MPI_Get_elements_x(&status, memory_type, &done), "count what was written");
    if (done != bytes) fail(pieces, fmt::format("{} of {} bytes were taken", done, bytes));
  }

  void sync_and_close() override {
    const int synced = MPI_File_sync(file_);
    const int closed = MPI_File_close(&file_);
    for (const int code : {synced, closed})
      if (code != MPI_SUCCESS) throw IoError("cannot sync {}: {}", path_.string(), mpi_reason(code));
  }

 private:
  /// MPI-IO often says no more than "input/output error". The same bytes written plainly (the file is given
  /// up anyway) meet the system's own reason.
  [[noreturn]] void fail(std::span<const Piece> pieces, const std::string& reason) const {
    PlainFile(path_).write(pieces);
    throw IoError("cannot write {}: {}", path_.string(), reason);
  }

  std::filesystem::path path_;
  MPI_File file_;
  Info hints_;
};

}  // namespace

std::unique_ptr<SharedFile> open_shared_file(const std::filesystem::path& path, comm::Communicator& comm,
                                             const std::vector<std::string>& io_hints) {
  Agreement agreement(comm, fmt::format("opening {}", path.string()));
  if (comm.size() == 1) return std::make_unique<PlainFile>(path);
  Info hints;
  agreement.attempt([&] { hints = make_hints(io_hints); });
  agreement.settle();
  MPI_File file = MPI_FILE_NULL;
  const int code = MPI_File_open(mpi_of(comm), path.c_str(), MPI_MODE_WRONLY, hints.get(), &file);
  agreement.attempt([&] {
    if (code != MPI_SUCCESS) throw IoError("cannot open {}: {}", path.string(), mpi_reason(code));
  });
  // A rank that did open then keeps its handle: closing it is collective too.
  agreement.settle();
  return std::make_unique<MpiFile>(path, file, std::move(hints));
}

}  // namespace cartan::store
