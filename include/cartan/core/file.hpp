// Files: whole reads, atomic writes, read-only mappings. Every failure names the path and the reason.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace cartan {

/// Throws MissingError or IoError.
std::string read_file(const std::filesystem::path& path);
/// Writes to a temporary name beside `path`, flushes to disk and renames. Throws IoError; `path` is then
/// untouched.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);
/// fsync of a directory, so that a rename inside it survives a power cut. Throws IoError.
void sync_directory(const std::filesystem::path& directory);

/// A file mapped read-only. Move-only.
class MappedFile {
 public:
  /// Throws MissingError or IoError. An empty file maps to an empty span.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace cartan
