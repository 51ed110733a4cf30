#include "tools/file_system.hpp"

#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "cartan/core/clock.hpp"
#include "cartan/core/error.hpp"
#include "cartan/core/file.hpp"
#include "tools/rank_texts.hpp"

namespace cartan::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBytes = std::size_t{8} << 20;

/// Folders above `path`, until one is there.
fs::path nearest_folder(const fs::path& path) {
  std::error_code error;
  fs::path folder = fs::absolute(path).lexically_normal();
  while (!fs::is_directory(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

struct FileSystem {
  unsigned long magic;
  const char* name;
  bool is_in_memory;
};
// Linux names them in its manual, statfs(2); Lustre, GPFS and BeeGFS in their own headers.
constexpr std::array kFileSystems{
    FileSystem{0xef53, "ext4", false},       FileSystem{0x58465342, "XFS", false},
    FileSystem{0x9123683e, "Btrfs", false},  FileSystem{0x2fc12fc1, "ZFS", false},
    FileSystem{0x6969, "NFS", false},        FileSystem{0x0bd00bd0, "Lustre", false},
    FileSystem{0x47504653, "GPFS", false},   FileSystem{0x19830326, "BeeGFS", false},
    FileSystem{0x00c36400, "CephFS", false}, FileSystem{0x794c7630, "an overlay", false},
    FileSystem{0x65735546, "FUSE", false},   FileSystem{0x01021994, "tmpfs", true},
    FileSystem{0x858458f6, "ramfs", true}};

const FileSystem* file_system_of(const fs::path& folder) {
  struct statfs facts {};
  if (statfs(folder.c_str(), &facts) != 0) return nullptr;
  const auto magic = static_cast<unsigned long>(facts.f_type) & 0xffffffffUL;
  const auto* const found = std::find_if(kFileSystems.begin(), kFileSystems.end(),
                                         [&](const FileSystem& f) { return f.magic == magic; });
  return found == kFileSystems.end() ? nullptr : found;
}

void look_at(const fs::path& file) {
  std::error_code error;
  const auto size = fs::file_size(file, error);
  if (error || size != kBytes)
    throw IoError("does not see the file that rank 0 wrote in {}", file.parent_path().string());
}

}  // namespace

Finding about_run_dir(comm::Communicator& world, const fs::path& run_dir) {
  const std::string name = gather(world, fmt::format(".cartan-doctor-{}", getpid())).front();
  const fs::path file = nearest_folder(run_dir) / name;
  const auto begin = Clock::now();
  Texts failed = failures(world, [&] {
    if (world.rank() == 0) write_file_atomically(file, std::string(kBytes, '\0'));
  });
  const double seconds = seconds_since(begin);
  std::string advice = "run.dir must be on a disk that this user may write to";
  if (failed.empty()) {
    failed = failures(world, [&] { look_at(file); });
    advice = "run.dir must be on a file system that all nodes share";
  }
  world.barrier();  // all have looked
  std::error_code error;
  if (world.rank() == 0) fs::remove(file, error);
  if (!failed.empty()) return {"run.dir", Health::bad, summary(failed), advice};

  const fs::path folder = file.parent_path();
  const FileSystem* const kind = file_system_of(folder);
  const double free = static_cast<double>(fs::space(folder, error).available);
  constexpr double kGib = 1 << 30, kMib = 1 << 20;
  const std::string text =
      gather(world, fmt::format("{} on {}: {:.1f} GiB free, {:.0f} MiB/s for {:.0f} MiB", folder.string(),
                                kind == nullptr ? "an unknown file system" : kind->name, free / kGib,
                                static_cast<double>(kBytes) / kMib / std::max(seconds, 1e-9),
                                static_cast<double>(kBytes) / kMib))
          .front();
  if (kind != nullptr && kind->is_in_memory)
    return {"run.dir", Health::notable, text,
            "it is in memory: checkpoints are gone when the machine restarts"};
  return {"run.dir", Health::good, text};
}

}  // namespace cartan::tools
