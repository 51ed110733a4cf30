// Memory that lives in a file without a name: the system writes it to disk when it needs the room, and it is
// gone with the process.
#pragma once

#include <cstddef>
#include <filesystem>

namespace cartan {

/// Maps `size_bytes` zeros from a file in `directory`, all of it allocated there. Throws IoError that names
/// the directory and the reason (disk full, quota, no such folder). To be given back by unmap_scratch.
void* map_scratch(const std::filesystem::path& directory, std::size_t size_bytes);
void unmap_scratch(void* data, std::size_t size_bytes) noexcept;

}  // namespace cartan
