// Listing is sorted by path, because directory order differs between file systems.
#include "input_files.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "cartan/core/error.hpp"
#include "cartan/core/json.hpp"
#include "sample_lines.hpp"

namespace cartan::data {
namespace {

namespace fs = std::filesystem;

using Kind = InputFile::Kind;

/// The first line that is not blank; empty where there is none, or one too long to look at.
std::string first_line(const std::string& path) {
  constexpr std::size_t kLongestGuess = std::size_t{1} << 26, kStep = std::size_t{1} << 16;
  FileReader reader(path);
  std::string text;
  for (std::string_view more = reader.read(kStep); !more.empty(); more = reader.read(kStep)) {
    text += more;
    text.erase(0, text.find_first_not_of(" \t\r\n"));
    if (const std::size_t end = text.find('\n'); end != std::string::npos) return text.substr(0, end);
    if (text.size() > kLongestGuess) return {};
  }
  return text;
}

/// Ordinary .json files are common in folders; one is taken as JSON lines only if it begins like them.
Kind kind_of(const std::string& path, bool is_in_folder, std::string_view key) {
  if (path.ends_with(".parquet")) return Kind::parquet;
  const bool is_json = path.ends_with(".json");
  if (!is_json && !path.ends_with(".jsonl")) return Kind::text;
  const std::string line = first_line(path);
  if (is_sample_line(line, key)) return Kind::samples;
  if (!is_json || !is_in_folder) return Kind::json_lines;
  const Json json = Json::parse(line, nullptr, false);
  return json.is_object() && json.contains(key) ? Kind::json_lines : Kind::text;
}

void list_folder(const fs::path& folder, std::string_view json_key, std::vector<InputFile>& files) {
  std::vector<InputFile> found;
  try {
    for (fs::recursive_directory_iterator it(folder), end; it != end; ++it) {
      const std::string name = it->path().filename().string();
      if (name.starts_with('.')) {
        if (it->is_directory()) it.disable_recursion_pending();
      } else if (it->is_regular_file()) {
        found.push_back({it->path().string(), Kind::text, static_cast<Index>(it->file_size())});
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw IoError("cannot list {}: {}", folder.string(), error.code().message());
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  for (InputFile& file : found) {
    file.kind = kind_of(file.path, true, json_key);
    files.push_back(std::move(file));
  }
}

}  // namespace

std::vector<InputFile> list_inputs(std::span<const std::string> inputs, std::string_view json_key) {
  std::vector<InputFile> files;
  for (const std::string& input : inputs) {
    std::error_code error;
    const fs::file_status status = fs::status(input, error);
    if (status.type() == fs::file_type::not_found) throw MissingError("{}: no such file or folder", input);
    if (error) throw IoError("cannot read {}: {}", input, error.message());
    if (fs::is_directory(status)) {
      list_folder(input, json_key, files);
    } else if (fs::is_regular_file(status)) {
      const std::uintmax_t bytes = fs::file_size(input, error);
      if (error) throw IoError("cannot read {}: {}", input, error.message());
      files.push_back({input, kind_of(input, false, json_key), static_cast<Index>(bytes)});
    } else {
      throw IoError("cannot read {}: neither a regular file nor a folder", input);
    }
  }
  return files;
}

FileReader::FileReader(std::string path) : path_(std::move(path)), file_(std::fopen(path_.c_str(), "rbe")) {
  if (file_) return;
  if (errno == ENOENT) throw MissingError("{}: no such file", path_);
  throw IoError("cannot open {}: {}", path_, errno_text(errno));
}

void FileReader::check() const {
  if (std::ferror(file_.get()) != 0) throw IoError("cannot read {}: {}", path_, errno_text(errno));
}

std::string_view FileReader::read(std::size_t bytes) {
  buffer_.resize(bytes);
  const std::size_t count = std::fread(buffer_.data(), 1, bytes, file_.get());
  check();
  return std::string_view(buffer_).substr(0, count);
}

bool FileReader::read_line(std::string_view& line) {
  char* memory = line_.release();
  const ssize_t length = ::getline(&memory, &line_bytes_, file_.get());
  line_.reset(memory);
  check();
  if (length < 0) return false;
  line = {memory, static_cast<std::size_t>(length)};
  return true;
}

}  // namespace cartan::data
