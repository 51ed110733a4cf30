#include "symbols.hpp"

#include <unistd.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include "program_image.hpp"

namespace emu {
namespace {

struct Frame {
  std::string function, file, line;
};

std::vector<std::string> output_of(const std::string& command) {
  std::vector<std::string> lines;
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return lines;
  std::string line;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    if (c != '\n') {
      line += static_cast<char>(c);
    } else {
      lines.push_back(std::move(line));
      line.clear();
    }
  }
  pclose(pipe);
  return lines;
}

/// "path/file:line (discriminator 2)"
Frame frame_of(std::string function, const std::string& place) {
  const auto colon = place.rfind(':');
  const auto end = place.find(' ', colon);
  return {std::move(function), place.substr(0, colon), place.substr(colon + 1, end - colon - 1)};
}

/// The functions around an address: the one that contains it last, before it those that are inlined there.
const std::vector<Frame>& frames_at(const void* address) {
  static std::mutex& mutex = *new std::mutex;
  static std::map<const void*, std::vector<Frame>>& known = *new std::map<const void*, std::vector<Frame>>;
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = known.try_emplace(address);
  if (!is_new) return entry->second;
  const auto offset = static_cast<const unsigned char*>(address) - program_image().base;
  char command[128];
  std::snprintf(command, sizeof command, "addr2line -C -f -i -e /proc/%d/exe 0x%zx", getpid(),
                static_cast<std::size_t>(offset));
  const std::vector<std::string> lines = output_of(command);
  for (std::size_t i = 0; i + 1 < lines.size(); i += 2)
    entry->second.push_back(frame_of(lines[i], lines[i + 1]));
  return entry->second;
}

bool is_part_of_language(const Frame& frame) {
  return frame.file.find("/emu/device") != frame.file.npos ||
         frame.file.find("/emu/warp/") != frame.file.npos || frame.file.find("/include/") != frame.file.npos;
}

std::string short_place(const Frame& frame) {
  return frame.file.substr(frame.file.rfind('/') + 1) + ":" + frame.line;
}

/// Positions of a demangled name outside of template arguments.
template <class Is>
std::size_t find_outside_templates(std::string_view name, const Is& is) {
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (depth == 0 && is(name[i])) return i;
  }
  return name.npos;
}

}  // namespace

std::string kernel_name(const void* function) {
  const std::vector<Frame>& frames = frames_at(function);
  if (frames.empty()) return "?";
  std::string name = frames.back().function;
  constexpr std::string_view kUnnamed = "(anonymous namespace)::";
  for (auto at = name.find(kUnnamed); at != name.npos; at = name.find(kUnnamed))
    name.erase(at, kUnnamed.size());
  name = name.substr(0, find_outside_templates(name, [](char c) { return c == '('; }));
  // In front: the type of the result where the kernel is a template, and scopes.
  const auto is_separator = [](char c) { return c == ' ' || c == ':'; };
  for (auto at = find_outside_templates(name, is_separator); at != name.npos;
       at = find_outside_templates(name, is_separator))
    name = name.substr(at + 1);
  return name;
}

std::string source_line(const void* code) {
  // A return address: the instruction lies before it.
  const std::vector<Frame>& frames = frames_at(static_cast<const unsigned char*>(code) - 1);
  for (const Frame& frame : frames) {
    if (is_part_of_language(frame)) continue;
    const std::string inner = short_place(frame), outer = short_place(frames.back());
    return &frame == &frames.back() ? inner : inner + " (" + outer + ")";
  }
  return frames.empty() ? "?" : short_place(frames.back());
}

}  // namespace emu
