// The checkpoints of a run: which there are, which is the newest good one, which may go.
#include <algorithm>
#include <charconv>
#include <string_view>

#include "cartan/core/error.hpp"
#include "cartan/core/log.hpp"
#include "cartan/store/checkpoint.hpp"
#include "group.hpp"
#include "temporary_file.hpp"

namespace cartan::store {
namespace {

constexpr std::string_view kPrefix = "step-", kSuffix = ".h5";

std::filesystem::path folder_of(const std::filesystem::path& run_dir) { return run_dir / "checkpoints"; }

/// The step of "step-120.h5"; -1 for any other name.
Index step_of(const std::string& name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return -1;
  const char* begin = name.data() + kPrefix.size();
  const char* end = name.data() + name.size() - kSuffix.size();
  Index step = -1;
  const auto [stop, error] = std::from_chars(begin, end, step);
  // Written again it must be the same: "step-007.h5" is none of ours, and would stand for another file.
  return error == std::errc() && stop == end && name == fmt::format("step-{}.h5", step) ? step : -1;
}

/// Names in the folder; none if there is no folder. Throws IoError.
std::vector<std::filesystem::path> list(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error), end;
  for (; !error && entry != end; entry.increment(error)) files.push_back(entry->path());
  if (error && error != std::errc::no_such_file_or_directory)
    throw IoError("cannot list {}: {}", folder.string(), error.message());
  return files;
}

void remove_file(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::remove(path, error);
  if (error) log::warning("store", "cannot delete {}: {}", path.string(), error.message());
}

/// Why the checkpoint is not good; empty if it is. Every rank gets the same answer. Collective.
std::string reject_reason(const std::filesystem::path& path, comm::Communicator& comm) {
  std::string reason;
  try {
    CheckpointReader(path).verify_part(comm.rank(), comm.size());
  } catch (const Error& error) {
    reason = error.what();
  }
  const auto speaker = comm.max(reason.empty() ? -1 : comm.rank());
  return speaker < 0 ? "" : broadcast_text(comm, reason, static_cast<int>(speaker));
}

}  // namespace

std::filesystem::path checkpoint_path(const std::filesystem::path& run_dir, Index step) {
  return folder_of(run_dir) / fmt::format("step-{}.h5", step);
}

std::vector<Index> checkpoint_steps(const std::filesystem::path& run_dir) {
  std::vector<Index> steps;
  for (const auto& file : list(folder_of(run_dir)))
    if (const Index step = step_of(file.filename().string()); step >= 0) steps.push_back(step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::optional<FoundCheckpoint> find_newest_good(const std::filesystem::path& run_dir,
                                                comm::Communicator& comm) {
  // One rank lists, so that all look at the same files in the same order.
  std::vector<Index> steps;
  Agreement agreement(comm, fmt::format("listing the checkpoints of {}", run_dir.string()));
  agreement.attempt([&] {
    if (comm.rank() == 0) steps = checkpoint_steps(run_dir);
  });
  agreement.settle();
  std::string text(reinterpret_cast<const char*>(steps.data()), steps.size() * sizeof(Index));
  text = broadcast_text(comm, std::move(text));
  steps.resize(text.size() / sizeof(Index));
  std::copy(text.begin(), text.end(), reinterpret_cast<char*>(steps.data()));

  FoundCheckpoint found;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    found.path = checkpoint_path(run_dir, *step);
    found.step = *step;
    const std::string reason = reject_reason(found.path, comm);
    if (reason.empty()) return found;
    found.rejected.push_back(reason);
  }
  if (found.rejected.empty()) return std::nullopt;
  throw DataError("none of the {} checkpoints in {} is good (move them away to start from step 0):\n  {}",
                  found.rejected.size(), folder_of(run_dir).string(), fmt::join(found.rejected, "\n  "));
}

void remove_old(const std::filesystem::path& run_dir, int keep) {
  const auto files = list(folder_of(run_dir));
  for (const auto& file : files)
    if (is_abandoned(file)) remove_file(file);
  if (keep <= 0) return;
  const std::vector<Index> steps = checkpoint_steps(run_dir);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < steps.size(); ++i)
    remove_file(checkpoint_path(run_dir, steps[i]));
}

}  // namespace cartan::store
