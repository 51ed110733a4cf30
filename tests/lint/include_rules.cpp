#include "lint/include_rules.hpp"

#include <algorithm>
#include <optional>
#include <sstream>

namespace cartan::lint {
namespace {

using Names = std::vector<std::string>;

std::string join(const Names& names) {
  std::string out;
  for (const auto& name : names) out += (out.empty() ? "" : ", ") + name;
  return out.empty() ? "none" : out;
}

bool contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_header(std::string_view path) { return path.ends_with(".hpp") || path.ends_with(".cuh"); }

/// "#pragma once", or Highway's form of it in a header that is compiled again for each instruction set.
bool is_guard(std::string_view line) {
  return line.starts_with("#pragma once") ||
         (line.starts_with("#if") && line.find("HWY_TARGET_TOGGLE") != std::string_view::npos);
}

/// A library whose headers stay in a few places.
struct Confined {
  std::string library;
  Names prefixes;      // of its headers' names
  Names rooms;         // all files of these rooms may include them,
  std::string folder;  // all below a folder of this name,
  Names files;         // and these files
};

const std::vector<Confined>& confined_libraries() {
  static const std::vector<Confined> libraries = {
      {"MPI", {"mpi.h"}, {"comm", "store"}, "", {"src/cli/main.cpp"}},
      {"Boost", {"boost/"}, {"cli"}, "", {}},
      {"Apache Arrow", {"arrow/", "parquet/"}, {}, "", {"src/data/parquet.cpp"}},
      {"CUDA", {"cuda", "cublas", "curand", "nvtx3/"}, {}, "cuda", {}},
      {"NCCL", {"nccl"}, {}, "nccl", {}},
  };
  return libraries;
}

bool allows(const Confined& library, std::string_view path) {
  return contains(library.rooms, room_of(path)) || contains(library.files, path) ||
         (!library.folder.empty() && path.find("/" + library.folder + "/") != std::string_view::npos);
}

bool owns(const Confined& library, std::string_view header) {
  return std::any_of(library.prefixes.begin(), library.prefixes.end(),
                     [&](const std::string& prefix) { return header.starts_with(prefix); });
}

std::string_view skip_blanks(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t");
  return begin == std::string_view::npos ? std::string_view{} : text.substr(begin);
}

/// The text after `word` and the blanks around it; nothing if the text does not begin so.
std::optional<std::string_view> after(std::string_view text, std::string_view word) {
  text = skip_blanks(text);
  if (!text.starts_with(word)) return std::nullopt;
  return skip_blanks(text.substr(word.size()));
}

/// The header that a line includes.
std::optional<std::string> included_header(std::string_view line) {
  const auto directive = after(line, "#");
  const auto name = directive ? after(*directive, "include") : std::nullopt;
  if (!name || name->empty() || (name->front() != '<' && name->front() != '"')) return std::nullopt;
  const auto end = name->find_first_of(">\"", 1);
  if (end == std::string_view::npos) return std::nullopt;
  return std::string(name->substr(1, end - 1));
}

bool is_using_namespace(std::string_view line) {
  const auto rest = after(line, "using ");
  return rest && after(*rest, "namespace ");
}

/// A public header is included as "cartan/ROOM/file.hpp", a private one as "ROOM/file.hpp" from src/.
std::string included_room(std::string_view header) {
  const bool is_public = header.starts_with("cartan/");
  if (is_public) header.remove_prefix(7);
  const std::string room(header.substr(0, header.find('/')));
  return is_public || allowed_rooms().count(room) > 0 ? room : std::string{};
}

}  // namespace

std::string Violation::text() const { return file + ":" + std::to_string(line) + ": " + message; }

const std::map<std::string, Names, std::less<>>& allowed_rooms() {
  static const Names up_to_store = {"core",     "device", "comm", "model", "shard",
                                    "pipeline", "optim",  "data", "store"};
  static const Names up_to_plan = [] {
    Names names = up_to_store;
    names.insert(names.end(), {"train", "infer", "plan"});
    return names;
  }();
  static const Names up_to_tools = [] {
    Names names = up_to_plan;
    names.push_back("tools");
    return names;
  }();
  static const std::map<std::string, Names, std::less<>> table = {
      {"core", {}},
      {"device", {"core"}},
      {"comm", {"core", "device"}},
      {"model", {"core", "device", "comm"}},
      {"shard", {"core", "device", "comm", "model"}},
      {"pipeline", {"core", "device", "comm", "model", "shard"}},
      {"optim", {"core", "device", "comm", "shard"}},
      {"data", {"core", "device", "comm"}},
      {"store", {"core", "device", "comm", "model", "shard"}},
      {"train", up_to_store},
      {"infer", {"core", "device", "comm", "model", "shard", "data", "store"}},
      {"plan", {"core", "device", "comm", "model", "shard", "pipeline"}},
      {"tools", up_to_plan},
      {"cli", up_to_tools},
  };
  return table;
}

std::string room_of(std::string_view path) {
  for (std::string_view root : {"src/", "include/cartan/"}) {
    if (!path.starts_with(root)) continue;
    const auto rest = path.substr(root.size());
    const auto slash = rest.find('/');
    if (slash != std::string_view::npos) return std::string(rest.substr(0, slash));
  }
  return {};
}

std::vector<Violation> check_file(std::string_view path, std::string_view content) {
  std::vector<Violation> found;
  const auto report = [&](int line, const std::string& message) {
    found.push_back({std::string(path), line, message});
  };
  const std::string room = room_of(path);
  const auto entry = allowed_rooms().find(room);
  if (entry == allowed_rooms().end()) {
    report(1, "'" + room + "' is not a room; the rooms are those of allowed_rooms() in tests/lint");
    return found;
  }
  const Names& allowed = entry->second;

  int number = 0;
  bool has_guard = false;
  std::istringstream lines{std::string(content)};
  for (std::string line; std::getline(lines, line);) {
    ++number;
    has_guard = has_guard || is_guard(line);
    if (is_header(path) && is_using_namespace(line))
      report(number, "'using namespace' in a header reaches every file that includes it");
    const auto header = included_header(line);
    if (!header) continue;
    const std::string other = included_room(*header);
    if (!other.empty() && other != room && !contains(allowed, other))
      report(number, "room '" + room + "' includes \"" + *header + "\" of room '" + other +
                         "'; it may include: " + join(allowed));
    for (const auto& library : confined_libraries()) {
      if (owns(library, *header) && !allows(library, path))
        report(number, "<" + *header + "> is included outside " +
                           (library.folder.empty() ? "room " + join(library.rooms)
                                                   : "a folder " + library.folder + "/") +
                           ", where " + library.library + " stays");
    }
  }
  if (is_header(path) && !has_guard) report(1, "header without #pragma once");
  return found;
}

}  // namespace cartan::lint
