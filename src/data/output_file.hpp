// A file that is written under a temporary name and gets its own name at the end, or disappears.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "cartan/core/types.hpp"

namespace cartan::data {

class OutputFile {
 public:
  /// Creates PATH.tmpPID. Throws IoError.
  explicit OutputFile(std::string path);
  /// Removes the temporary file if it was not renamed.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Buffered. Throws IoError.
  void write(std::span<const std::byte> bytes);
  template <class T>
  void write_values(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    write(std::as_bytes(values));
  }
  /// Forgets all bytes beyond `size`.
  void truncate(Index size);
  /// Everything to disk.
  void sync();
  /// Gives the file its name.
  void rename();

 private:
  void flush();

  std::string path_, temporary_;
  int fd_ = -1;
  Index flushed_ = 0;  ///< bytes in the file; more may be in the buffer
  std::vector<std::byte> buffer_;
};

}  // namespace cartan::data
