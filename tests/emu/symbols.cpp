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

using Frames = std::vector<Frame>;

/// Of each address the function that contains it last, before it those that are inlined there.
std::map<const void*, Frames>& known_frames() {
  static std::map<const void*, Frames>& known = *new std::map<const void*, Frames>;
  return known;
}

/// Asks addr2line about the addresses that are not known yet, all at once: reading the program takes it most
/// of its time.
void learn_frames(const std::vector<const void*>& addresses) {
  constexpr std::size_t kMost = 4096;  // a command has 128 KiB
  std::string command = "addr2line -a -C -f -i -e /proc/" + std::to_string(getpid()) + "/exe";
  std::vector<Frames*> answers;
  std::size_t done = 0;
  while (done < addresses.size() && answers.size() < kMost) {
    const void* const address = addresses[done++];
    const auto [entry, is_new] = known_frames().try_emplace(address);
    if (!is_new) continue;
    const auto offset = static_cast<const unsigned char*>(address) - program_image().base;
    char number[32];
    std::snprintf(number, sizeof number, " 0x%tx", offset);
    command += number;
    answers.push_back(&entry->second);
  }
  if (answers.empty()) return;
  // A line with the address, then two for each function.
  std::string function;
  std::size_t answer = 0;
  for (const std::string& line : output_of(command)) {
    if (line.starts_with("0x")) {
      ++answer;
      function.clear();
    } else if (function.empty()) {
      function = line;
    } else {
      if (answer > 0 && answer <= answers.size())
        answers[answer - 1]->push_back(frame_of(std::move(function), line));
      function.clear();
    }
  }
  learn_frames({addresses.begin() + static_cast<std::ptrdiff_t>(done), addresses.end()});
}

std::mutex& symbols_lock() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

const Frames& frames_at(const void* address) {
  const std::lock_guard lock(symbols_lock());
  learn_frames({address});
  return known_frames()[address];
}

/// A return address: the instruction lies before it.
const void* instruction_before(const void* code) { return static_cast<const unsigned char*>(code) - 1; }

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
  const Frames& frames = frames_at(function);
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

void learn_symbols(const std::vector<const void*>& functions, const std::vector<const void*>& codes) {
  std::vector<const void*> addresses = functions;
  for (const void* const code : codes) addresses.push_back(instruction_before(code));
  const std::lock_guard lock(symbols_lock());
  learn_frames(addresses);
}

std::string source_line(const void* code) {
  const Frames& frames = frames_at(instruction_before(code));
  for (const Frame& frame : frames) {
    if (is_part_of_language(frame)) continue;
    const std::string inner = short_place(frame), outer = short_place(frames.back());
    return &frame == &frames.back() ? inner : inner + " (" + outer + ")";
  }
  return frames.empty() ? "?" : short_place(frames.back());
}

}  // namespace emu
