#include "access_patterns.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>
#include <unordered_map>

#include "fibers.hpp"
#include "settings.hpp"
#include "symbols.hpp"

namespace emu {
namespace {

constexpr std::uintptr_t kSectorBytes = 32, kWordBytes = 4, kBanks = 32;

struct Request {
  std::array<std::uintptr_t, 32> address{};
  unsigned lanes = 0;
};

/// An instruction by the address behind it; an asynchronous copy is two, of either memory.
struct Key {
  const void* code;
  bool is_global;
  auto operator<=>(const Key&) const = default;
};
struct HashOfKey {
  std::size_t operator()(const Key& key) const {
    return std::hash<const void*>()(key.code) * 2 + (key.is_global ? 1 : 0);
  }
};

/// What a block did at one instruction.
struct Instruction {
  bool writes = false;
  unsigned bytes = 0;
  std::array<unsigned, Block::kMostThreads> accesses{};  ///< of each thread so far
  std::array<std::vector<Request>, 32> requests_of_warp;
};

struct Totals {
  bool writes = false;
  unsigned bytes = 0;
  std::uint64_t accesses = 0, requests = 0, units = 0, least = 0;
};

using Instructions = std::unordered_map<Key, Instruction, HashOfKey>;
// Never destroyed: patterns may be printed after main.
Instructions& of_block = *new Instructions;
using Place = std::pair<const void*, Key>;  // of which kernel
std::map<Place, Totals>& totals = *new std::map<Place, Totals>;

std::size_t sectors_of(const Request& request, unsigned bytes) {
  std::set<std::uintptr_t> sectors;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((request.lanes >> lane & 1) == 0) continue;
    const std::uintptr_t first = request.address[lane] / kSectorBytes;
    const std::uintptr_t last = (request.address[lane] + bytes - 1) / kSectorBytes;
    for (std::uintptr_t sector = first; sector <= last; ++sector) sectors.insert(sector);
  }
  return sectors.size();
}

std::size_t distinct_addresses(const Request& request) {
  std::set<std::uintptr_t> addresses;
  for (unsigned lane = 0; lane < 32; ++lane)
    if (request.lanes >> lane & 1) addresses.insert(request.address[lane]);
  return addresses.size();
}

/// Lanes that the hardware serves together.
unsigned lanes_served(unsigned bytes) { return bytes <= 4 ? 32 : bytes <= 8 ? 16 : 8; }

/// Of `count` lanes from `first` on.
std::size_t passes_of(const Request& request, unsigned bytes, unsigned first, unsigned count) {
  std::array<std::set<std::uintptr_t>, kBanks> words;
  for (unsigned lane = first; lane < first + count; ++lane) {
    if ((request.lanes >> lane & 1) == 0) continue;
    const std::uintptr_t begin = request.address[lane] / kWordBytes;
    const std::uintptr_t last = (request.address[lane] + bytes - 1) / kWordBytes;
    for (std::uintptr_t word = begin; word <= last; ++word) words[word % kBanks].insert(word);
  }
  std::size_t passes = 0;
  for (const auto& of_bank : words) passes = std::max(passes, of_bank.size());
  return passes;
}

void add(Totals& sum, const Instruction& instruction, bool is_global, const Request& request) {
  const auto lanes = static_cast<unsigned>(std::popcount(request.lanes));
  sum.accesses += lanes;
  ++sum.requests;
  if (is_global) {
    sum.units += sectors_of(request, instruction.bytes);
    sum.least += (distinct_addresses(request) * instruction.bytes + kSectorBytes - 1) / kSectorBytes;
    return;
  }
  const unsigned together = lanes_served(instruction.bytes);
  for (unsigned first = 0; first < 32; first += together) {
    const std::size_t passes = passes_of(request, instruction.bytes, first, together);
    sum.units += passes;
    sum.least += passes > 0 ? 1 : 0;
  }
}

bool is_named(const AccessPattern& pattern, const std::string& kernel) {
  return pattern.kernel.substr(0, pattern.kernel.find('<')) == kernel;
}

/// Those of a kernel that go to global or to shared memory.
std::vector<AccessPattern> patterns_of(const std::string& kernel, bool is_global) {
  std::vector<AccessPattern> found = access_patterns();
  std::string names;
  for (const AccessPattern& pattern : found)
    if (names.find(pattern.kernel) == names.npos) names += " " + pattern.kernel;
  const auto is_other = [&](const AccessPattern& pattern) { return !is_named(pattern, kernel); };
  if (std::all_of(found.begin(), found.end(), is_other))
    throw std::invalid_argument("no access of kernel " + kernel +
                                " was seen; of:" + (names.empty() ? " none" : names));
  std::erase_if(found, [&](const AccessPattern& pattern) {
    return is_other(pattern) || pattern.is_global != is_global;
  });
  return found;
}

double ratio(std::uint64_t a, std::uint64_t b) { return static_cast<double>(a) / static_cast<double>(b); }

void print_at_exit_if_asked() {
  if (config.profile) print_patterns();
}

}  // namespace

void note_pattern(const void* address, std::size_t bytes, bool writes, bool is_global, const void* code) {
  Instruction& instruction = of_block[{code, is_global}];
  instruction.writes = writes;
  instruction.bytes = static_cast<unsigned>(bytes);
  std::vector<Request>& requests = instruction.requests_of_warp[self->warp];
  const unsigned number = instruction.accesses[self->rank]++;
  if (requests.size() <= number) requests.resize(number + 1);
  requests[number].address[self->lane] = reinterpret_cast<std::uintptr_t>(address);
  requests[number].lanes |= 1u << self->lane;
}

void fold_patterns(const void* kernel) {
  static const int registered = std::atexit(print_at_exit_if_asked);
  static_cast<void>(registered);
  for (const auto& [key, instruction] : of_block) {
    Totals& sum = totals[{kernel, key}];
    sum.writes = instruction.writes;
    sum.bytes = instruction.bytes;
    for (const std::vector<Request>& requests : instruction.requests_of_warp)
      for (const Request& request : requests) add(sum, instruction, key.is_global, request);
  }
  of_block.clear();
}

std::vector<AccessPattern> access_patterns() {
  std::vector<const void*> kernels, instructions;
  for (const auto& [place, sum] : totals) {
    kernels.push_back(place.first);
    instructions.push_back(place.second.code);
  }
  learn_symbols(kernels, instructions);
  std::map<std::tuple<std::string, std::string, bool, bool, unsigned>, AccessPattern> of_line;
  for (const auto& [place, sum] : totals) {
    const std::string kernel = kernel_name(place.first), line = source_line(place.second.code);
    const bool is_global = place.second.is_global;
    AccessPattern& pattern = of_line[{kernel, line, is_global, sum.writes, sum.bytes}];
    pattern.kernel = kernel;
    pattern.line = line;
    pattern.is_global = is_global;
    pattern.writes = sum.writes;
    pattern.bytes = sum.bytes;
    pattern.accesses += sum.accesses;
    pattern.requests += sum.requests;
    pattern.units += sum.units;
    pattern.least += sum.least;
  }
  std::vector<AccessPattern> patterns;
  for (const auto& [key, pattern] : of_line) patterns.push_back(pattern);
  return patterns;
}

void forget_patterns() {
  of_block.clear();
  totals.clear();
}

void print_patterns() {
  for (const AccessPattern& pattern : access_patterns())
    std::fprintf(stderr, "%s %s: %s %s of %u bytes: %llu requests, %.2f %s each (least %.2f)\n",
                 pattern.kernel.c_str(), pattern.line.c_str(), pattern.is_global ? "global" : "shared",
                 pattern.writes ? "stores" : "loads", pattern.bytes,
                 static_cast<unsigned long long>(pattern.requests), ratio(pattern.units, pattern.requests),
                 pattern.is_global ? "sectors" : "passes", ratio(pattern.least, pattern.requests));
}

double sectors_per_request(const std::string& kernel) {
  double most = 0;
  for (const AccessPattern& pattern : patterns_of(kernel, true))
    most = std::max(most, ratio(pattern.units, pattern.requests));
  return most;
}

double sector_excess(const std::string& kernel) {
  std::uint64_t sectors = 0, least = 0;
  for (const AccessPattern& pattern : patterns_of(kernel, true)) {
    sectors += pattern.units;
    least += pattern.least;
  }
  return ratio(sectors, least);
}

std::uint64_t sector_bytes_moved(const std::string& kernel) {
  std::uint64_t sectors = 0;
  for (const AccessPattern& pattern : patterns_of(kernel, true)) sectors += pattern.units;
  return sectors * kSectorBytes;
}

double bank_passes(const std::string& kernel) {
  double most = 1;
  for (const AccessPattern& pattern : patterns_of(kernel, false))
    most = std::max(most, ratio(pattern.units, pattern.least));
  return most;
}

std::uint64_t bytes_moved(const std::string& kernel) {
  std::uint64_t bytes = 0;
  for (const AccessPattern& pattern : patterns_of(kernel, true)) bytes += pattern.accesses * pattern.bytes;
  return bytes;
}

double bytes_per_access(const std::string& kernel) {
  std::uint64_t accesses = 0;
  for (const AccessPattern& pattern : patterns_of(kernel, true)) accesses += pattern.accesses;
  return ratio(bytes_moved(kernel), accesses);
}

}  // namespace emu
