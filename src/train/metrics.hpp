// metrics.jsonl: one JSON object a step. A resumed run first drops the lines of steps that it will do again.
#pragma once

#include <filesystem>
#include <fstream>
#include <vector>

#include "cartan/core/json_fwd.hpp"
#include "cartan/core/types.hpp"

namespace cartan::train {

class MetricsFile {
 public:
  /// Opens RUN_DIR/metrics.jsonl for appending and keeps only complete lines of steps up to `last_step`.
  /// Throws IoError.
  MetricsFile(const std::filesystem::path& run_dir, Index last_step);
  /// Writes one line and flushes. Throws IoError.
  void append(const Json& line);

 private:
  std::filesystem::path path_;
  std::ofstream out_;
};

}  // namespace cartan::train
