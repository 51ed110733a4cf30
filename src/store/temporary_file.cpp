#include "temporary_file.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <utility>

#include "cartan/core/error.hpp"
#include "cartan/core/file.hpp"

namespace cartan::store {
namespace {

constexpr std::string_view kMark = ".h5.tmp.";

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

}  // namespace

TemporaryFile::TemporaryFile(std::filesystem::path final_path) {
  std::error_code error;
  std::filesystem::create_directories(folder_of(final_path), error);
  if (error) throw IoError("cannot make the folder {}: {}", folder_of(final_path).string(), error.message());
  std::filesystem::path path = final_path;
  path += fmt::format(".tmp.{}.{}", host_name(), ::getpid());
  fd_ = Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd_) throw IoError("cannot write {}: {}", final_path.string(), errno_text(errno));
  path_ = std::move(path);
  final_path_ = std::move(final_path);
}

TemporaryFile::TemporaryFile(TemporaryFile&& other) noexcept
    : final_path_(std::move(other.final_path_)), path_(std::move(other.path_)), fd_(std::move(other.fd_)) {
  other.path_.clear();
}

TemporaryFile& TemporaryFile::operator=(TemporaryFile&& other) noexcept {
  TemporaryFile taken(std::move(other));
  std::swap(final_path_, taken.final_path_);
  std::swap(path_, taken.path_);
  std::swap(fd_, taken.fd_);
  return *this;
}

TemporaryFile::~TemporaryFile() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

void TemporaryFile::commit() {
  if (::rename(path_.c_str(), final_path_.c_str()) != 0)
    throw IoError("cannot rename {} to {}: {}", path_.string(), final_path_.string(), errno_text(errno));
  path_.clear();
  sync_directory(folder_of(final_path_));
}

namespace {

/// A dead process that nobody has waited for, as in a container whose first process does not.
bool is_zombie(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(stat, line);
  const auto name_end = line.rfind(')');  // the state follows the program's name
  return name_end != std::string::npos && line.size() > name_end + 2 && line[name_end + 2] == 'Z';
}

}  // namespace

bool is_abandoned(const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  const auto mark = name.find(kMark), dot = name.rfind('.');
  if (mark == std::string::npos || dot < mark + kMark.size()) return false;
  pid_t pid = 0;
  const char* end = name.data() + name.size();
  if (std::from_chars(name.data() + dot + 1, end, pid).ptr != end || pid <= 0) return false;
  if (name.substr(mark + kMark.size(), dot - mark - kMark.size()) == host_name())
    return (::kill(pid, 0) != 0 && errno == ESRCH) || is_zombie(pid);
  std::error_code error;
  const auto written = std::filesystem::last_write_time(file, error);
  return !error && std::filesystem::file_time_type::clock::now() - written > std::chrono::hours(1);
}

}  // namespace cartan::store
