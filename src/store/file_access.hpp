// Plain reads and writes at positions of an open file; each failure is one sentence with path and reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "cartan/core/handle.hpp"

namespace cartan::store {

struct DescriptorTraits {
  using Raw = int;
  static Raw null() { return -1; }
  static void destroy(Raw fd) noexcept;
};
using Descriptor = Handle<DescriptorTraits>;

/// Opens a regular file for reading; never blocks. Throws MissingError, IoError, or DataError for what is no
/// regular file.
Descriptor open_for_reading(const std::filesystem::path& path);
std::uint64_t file_size(int fd, const std::filesystem::path& path);
/// Fills `out` from `position`. Throws IoError, or DataError where the file ends before.
void read_at(int fd, const std::filesystem::path& path, std::uint64_t position, std::span<std::byte> out);
/// Throws IoError.
void write_at(int fd, const std::filesystem::path& path, std::uint64_t position,
              std::span<const std::byte> in);
/// Throws IoError.
void sync_file(int fd, const std::filesystem::path& path);
/// Whether the disk of an open file has so many bytes left for this user, as far as it says; sets errno if
/// not.
bool has_space(int fd, std::uint64_t bytes);
/// Gives an empty file its size, if so much is free: a full disk is noticed before anything is written.
/// (Space is not allocated: that costs as much as writing on some file systems. Another writer may still be
/// faster, and quotas are met later.) Throws IoError: disk full, file too large.
void set_size(int fd, const std::filesystem::path& path, std::uint64_t bytes);

}  // namespace cartan::store
