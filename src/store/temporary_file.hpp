// The name under which a checkpoint is written until it is complete: step-100.h5.tmp.HOST.PID.
#pragma once

#include <filesystem>
#include <string>

#include "file_access.hpp"

namespace cartan::store {

/// Made by one rank; removed when destroyed, unless it was given its final name.
class TemporaryFile {
 public:
  TemporaryFile() = default;
  /// Makes the file, and the folders above it. Throws IoError.
  explicit TemporaryFile(std::filesystem::path final_path);
  TemporaryFile(TemporaryFile&& other) noexcept;
  TemporaryFile& operator=(TemporaryFile&& other) noexcept;
  ~TemporaryFile();

  const std::filesystem::path& path() const { return path_; }
  int fd() const { return fd_.get(); }
  /// Renames to the final name and syncs the folder. Throws IoError.
  void commit();

 private:
  std::filesystem::path final_path_, path_;  // empty: nothing to remove
  Descriptor fd_;
};

/// Whether `name` is the temporary name of a checkpoint whose writer is gone: a process of this host that
/// does not run, or one of another host whose file was not touched for an hour.
bool is_abandoned(const std::filesystem::path& file);

}  // namespace cartan::store
