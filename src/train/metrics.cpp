#include "train/metrics.hpp"

#include <cerrno>
#include <string>

#include "cartan/core/error.hpp"
#include "cartan/core/file.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/text.hpp"

namespace cartan::train {

MetricsFile::MetricsFile(const std::filesystem::path& run_dir, Index last_step)
    : path_(run_dir / "metrics.jsonl") {
  if (std::filesystem::exists(path_)) {
    std::string kept;
    for (const std::string& line : split(read_file(path_), '\n')) {
      const Json entry = Json::parse(line, nullptr, false);  // the last line may be cut by a kill
      if (entry.is_object() && entry.value("step", Index{0}) > 0 &&
          entry.value("step", Index{0}) <= last_step)
        kept += line + "\n";
    }
    write_file_atomically(path_, kept);
  }
  out_.open(path_, std::ios::app);
  if (!out_) throw IoError("cannot open {}: {}", path_.string(), errno_text(errno));
}

void MetricsFile::append(const Json& line) {
  out_ << line.dump() << '\n' << std::flush;
  if (!out_) throw IoError("cannot write {}: {}", path_.string(), errno_text(errno));
}

}  // namespace cartan::train
