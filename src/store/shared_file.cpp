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
using Info = Handle<InfoTraits>;

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

class PlainFile final : public SharedFile {
 public:
  explicit PlainFile(std::filesystem::path path)
      : path_(std::move(path)), fd_(::open(path_.c_str(), O_WRONLY | O_CLOEXEC)) {
    if (!fd_) throw IoError("cannot open {}: {}", path_.string(), errno_text(errno));
  }
  bool collective() const override { return false; }
  void write(const Piece& piece) override {
    write_at(fd_.get(), path_, piece.position, {piece.data, piece.bytes});
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
  MpiFile(std::filesystem::path path, MPI_File file) : path_(std::move(path)), file_(file) {}

  bool collective() const override { return true; }

  void write(const Piece& piece) override {
    const int bytes = narrow<int>(piece.bytes);
    MPI_Status status{};
    const int code = MPI_File_write_at_all(file_, static_cast<MPI_Offset>(piece.position), piece.data, bytes,
                                           MPI_BYTE, &status);
    if (code != MPI_SUCCESS) fail(piece, mpi_reason(code));
    int done = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &done), "count what was written");
    if (done != bytes) fail(piece, fmt::format("{} of {} bytes were taken", done, bytes));
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
  [[noreturn]] void fail(const Piece& piece, const std::string& reason) const {
    PlainFile(path_).write(piece);
    throw IoError("cannot write {}: {}", path_.string(), reason);
  }

  std::filesystem::path path_;
  MPI_File file_;
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
  return std::make_unique<MpiFile>(path, file);
}

}  // namespace cartan::store
