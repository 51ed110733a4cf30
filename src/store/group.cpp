#include "group.hpp"

#include <mpi.h>

#include <numeric>

#include "cartan/core/narrow.hpp"
#include "mpi_calls.hpp"

namespace cartan::store {
namespace {

/// A failure as one number: the larger rank wins.
constexpr std::int64_t kCodes = 256;

[[noreturn]] void throw_with_code(ExitCode code, const std::string& message) {
  switch (code) {
    case ExitCode::io:
      throw IoError(message);
    case ExitCode::bad_data:
      throw DataError(message);
    case ExitCode::missing_input:
      throw MissingError(message);
    case ExitCode::configuration:
      throw ConfigError(message);
    case ExitCode::environment:
      throw EnvironmentError(message);
    case ExitCode::internal:
      throw InternalError(message);
    default:
      throw Error(code, message);
  }
}

ExitCode code_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return known.code();
  } catch (...) {
    return ExitCode::internal;
  }
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "unknown exception";
  }
}

std::vector<int> narrow_all(const std::vector<std::int64_t>& counts) {
  std::vector<int> out;
  out.reserve(counts.size());
  for (const std::int64_t count : counts) out.push_back(narrow<int>(count));
  return out;
}

std::vector<int> starts_of(const std::vector<int>& counts) {
  std::vector<int> starts(counts.size(), 0);
  for (std::size_t i = 1; i < counts.size(); ++i)
    starts[i] = narrow<int>(std::int64_t{starts[i - 1]} + counts[i - 1]);
  return starts;
}

}  // namespace

std::int64_t Agreement::worst() {
  return comm_.max(error_ ? (comm_.rank() + 1) * kCodes + static_cast<int>(code_of(error_)) : 0);
}

bool Agreement::anyone_failed() { return worst() != 0; }

void Agreement::settle() {
  const std::int64_t failure = worst();
  if (failure == 0) return;
  const auto rank = failure / kCodes - 1;
  const bool is_mine = rank == comm_.rank();
  const std::string reason = broadcast_text(comm_, is_mine ? text_of(error_) : "", narrow<int>(rank));
  if (is_mine) std::rethrow_exception(error_);
  throw_with_code(static_cast<ExitCode>(failure % kCodes),
                  fmt::format("{} failed on rank {}: {}", what_, rank, reason));
}

std::string broadcast_text(comm::Communicator& comm, std::string text, int root) {
  std::uint64_t size = text.size();
  comm.broadcast_host(std::as_writable_bytes(std::span(&size, 1)), root);
  text.resize(size);
  comm.broadcast_host(std::as_writable_bytes(std::span(text)), root);
  return text;
}

std::vector<std::int64_t> exchange_counts(comm::Communicator& comm, const std::vector<std::int64_t>& counts) {
  if (comm.size() == 1) return counts;
  std::vector<std::int64_t> incoming(counts.size());
  const int each = narrow<int>(counts.size() / static_cast<std::size_t>(comm.size()));
  check_mpi(  // NOLINTNEXTLINE(mpi-type-mismatch): std::int64_t is what MPI_INT64_T stands for
      MPI_Alltoall(counts.data(), each, MPI_INT64_T, incoming.data(), each, MPI_INT64_T, mpi_of(comm)),
      "exchange sizes");
  return incoming;
}

std::span<std::byte> RoundMemory::take(std::size_t bytes) {
  if (bytes > capacity_) {
    memory_ = nullptr;  // before there are two
    memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    capacity_ = bytes;
  }
  return {memory_.get(), bytes};
}

std::span<const std::byte> exchange(comm::Communicator& comm, const Outgoing& outgoing,
                                    const std::vector<std::int64_t>& incoming_counts, RoundMemory& memory) {
  if (comm.size() == 1) return outgoing.bytes;
  const auto send_counts = narrow_all(outgoing.counts), receive_counts = narrow_all(incoming_counts);
  const auto send_starts = starts_of(send_counts), receive_starts = starts_of(receive_counts);
  const std::span<std::byte> incoming = memory.take(static_cast<std::size_t>(
      std::accumulate(incoming_counts.begin(), incoming_counts.end(), std::int64_t{0})));
  check_mpi(
      MPI_Alltoallv(outgoing.bytes.data(), send_counts.data(), send_starts.data(), MPI_BYTE, incoming.data(),
                    receive_counts.data(), receive_starts.data(), MPI_BYTE, mpi_of(comm)),
      "exchange parts of blocks");
  return incoming;
}

std::vector<std::byte> gather_to_root(comm::Communicator& comm, std::vector<std::byte> mine) {
  if (comm.size() == 1) return mine;
  const int count = narrow<int>(mine.size());
  std::vector<int> counts(comm.rank() == 0 ? static_cast<std::size_t>(comm.size()) : 0);
  check_mpi(MPI_Gather(&count, 1, MPI_INT, counts.data(), 1, MPI_INT, 0, mpi_of(comm)), "gather sizes");
  const auto starts = starts_of(counts);
  std::vector<std::byte> all(counts.empty() ? 0 : static_cast<std::size_t>(starts.back() + counts.back()));
  check_mpi(MPI_Gatherv(mine.data(), count, MPI_BYTE, all.data(), counts.data(), starts.data(), MPI_BYTE, 0,
                        mpi_of(comm)),
            "gather checksums");
  return all;
}

}  // namespace cartan::store
