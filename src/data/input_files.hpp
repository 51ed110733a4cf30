// Which files `cartan tokenize` reads, in which order, and how.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cartan/core/types.hpp"

namespace cartan::data {

struct InputFile {
  enum class Kind { text, json_lines, samples, parquet };
  std::string path;
  Kind kind = Kind::text;  ///< samples: JSON lines of instruction data
  Index bytes = 0;
};

/// The files behind `inputs`; those of a folder sorted by path. Throws MissingError, IoError.
std::vector<InputFile> list_inputs(std::span<const std::string> inputs, std::string_view json_key);

/// A file that is read from the front. Throws MissingError, IoError.
class FileReader {
 public:
  explicit FileReader(std::string path);
  /// Reads up to `bytes`; an empty result is the end of the file. Valid until the next read.
  std::string_view read(std::size_t bytes);
  /// Reads one line, with its end; false at the end of the file. Valid until the next read.
  bool read_line(std::string_view& line);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  void check() const;

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::string buffer_;
  std::unique_ptr<char, Free> line_;  ///< belongs to getline(), which may move it
  std::size_t line_bytes_ = 0;
};

}  // namespace cartan::data
