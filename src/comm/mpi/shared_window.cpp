// Allocates shared windows, after a look at the room that the node has for them: MPI would only fail, or the
// process die of SIGBUS at the first touch.
#include "comm/mpi/shared_window.hpp"

#include <sys/statvfs.h>

#include <cstdint>
#include <limits>

#include "cartan/core/error.hpp"
#include "cartan/core/text.hpp"
#include "comm/mpi/check.hpp"

namespace cartan::comm {
namespace {

constexpr std::size_t kLine = 64;  // bytes of a cache line; what vector instructions want too

std::byte* align_up(void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return reinterpret_cast<std::byte*>((address + kLine - 1) / kLine * kLine);
}

/// Collective. Where MPI keeps its windows elsewhere than in /dev/shm the check does not apply and passes.
void require_room(MPI_Comm comm, const std::string& comm_name, std::size_t size_bytes,
                  std::string_view label) {
  std::uint64_t wanted = size_bytes, total = 0;
  check(MPI_Allreduce(&wanted, &total, 1, MPI_UINT64_T, MPI_SUM, comm), comm_name, "allocate_exchange");
  struct statvfs info {};
  std::uint64_t free_here = std::numeric_limits<std::uint64_t>::max(), free_bytes = 0;
  if (statvfs("/dev/shm", &info) == 0) free_here = std::uint64_t{info.f_bavail} * info.f_frsize;
  check(MPI_Allreduce(&free_here, &free_bytes, 1, MPI_UINT64_T, MPI_MIN, comm), comm_name,
        "allocate_exchange");
  if (total > free_bytes) {
    throw EnvironmentError(
        "{} on {} needs {} of shared memory for the ranks of a node, but /dev/shm has {} left: enlarge it "
        "(mount -o "
        "remount,size=..., docker run --shm-size=...) or set CARTAN_COMM=messages",
        label, comm_name, format_bytes(total), format_bytes(free_bytes));
  }
}

}  // namespace

SharedWindow::SharedWindow(MPI_Comm comm, const std::string& comm_name, std::size_t size_bytes,
                           std::string_view label)
    : size_bytes_(size_bytes) {
  int size = 0;
  check(MPI_Comm_rank(comm, &rank_), comm_name, "allocate_exchange");
  check(MPI_Comm_size(comm, &size), comm_name, "allocate_exchange");
  const std::size_t padded = size_bytes + kLine;
  require_room(comm, comm_name, padded, label);

  // Parts that need not be contiguous lie near their rank's CPU, in pages of their own.
  MPI_Info raw_info = MPI_INFO_NULL;
  check(MPI_Info_create(&raw_info), comm_name, "allocate_exchange");
  const InfoHandle info(raw_info);
  check(MPI_Info_set(raw_info, "alloc_shared_noncontig", "true"), comm_name, "allocate_exchange");
  void* own = nullptr;
  MPI_Win raw_win = MPI_WIN_NULL;
  check(MPI_Win_allocate_shared(static_cast<MPI_Aint>(padded), 1, raw_info, comm, &own, &raw_win), comm_name,
        "allocate_exchange");
  win_ = WinHandle(raw_win);
  check(MPI_Win_set_errhandler(raw_win, MPI_ERRORS_RETURN), comm_name, "allocate_exchange");
  for (int r = 0; r < size; ++r) {
    MPI_Aint queried = 0;
    int unit = 0;
    void* base = nullptr;
    check(MPI_Win_shared_query(raw_win, r, &queried, &unit, &base), comm_name, "allocate_exchange", r);
    bases_.push_back(align_up(base));  // the same rounding everywhere: mappings differ by whole pages
  }
}

bool SharedWindow::contains(const void* data, std::size_t size_bytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(own()), at = reinterpret_cast<std::uintptr_t>(data);
  return at >= begin && at - begin <= size_bytes_ && size_bytes <= size_bytes_ - (at - begin);
}

}  // namespace cartan::comm
