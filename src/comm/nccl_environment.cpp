// The keys nccl.* and the environment. Names and values: NVIDIA's user guide of NCCL, "Environment
// Variables".
#include "cartan/comm/nccl_environment.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include <fmt/ranges.h>

#include "cartan/core/log.hpp"

namespace cartan::comm {
namespace {

constexpr std::string_view kSwitch[]{"0", "1"}, kThree[]{"0", "1", "2"},
    kDebug[]{"VERSION", "WARN", "INFO", "TRACE"}, kGdrLevels[]{"LOC", "PIX", "PXB", "PHB", "SYS"},
    kP2pLevels[]{"LOC", "NVL", "PIX", "PXB", "PHB", "SYS"};

constexpr std::array<NcclKey, kNcclKeys> kKeys{{
    {"debug", "NCCL_DEBUG", "what NCCL says", kDebug},
    {"debug-subsys", "NCCL_DEBUG_SUBSYS", "of which parts, as in INIT,NET or ^TUNING"},
    {"debug-file", "NCCL_DEBUG_FILE", "where; %h is the host, %p the process"},
    {"socket-ifname", "NCCL_SOCKET_IFNAME", "network interfaces, as in ib0,eth or ^docker,lo"},
    {"socket-nthreads", "NCCL_SOCKET_NTHREADS", "threads for each connection by sockets", {}, 1, 16},
    {"ib-disable", "NCCL_IB_DISABLE", "1: no InfiniBand and no RoCE", kSwitch},
    {"ib-hca", "NCCL_IB_HCA", "InfiniBand adapters, as in mlx5_0,mlx5_1 or ^mlx5_2"},
    {"ib-gid-index", "NCCL_IB_GID_INDEX", "of RoCE", {}, 0, 255},
    {"ib-tc", "NCCL_IB_TC", "traffic class of InfiniBand", {}, 0, 255},
    {"ib-timeout", "NCCL_IB_TIMEOUT", "4.096 us times 2 to the power of it", {}, 1, 22},
    {"ib-retry-cnt", "NCCL_IB_RETRY_CNT", "tries of an InfiniBand message", {}, 0, 7},
    {"p2p-disable", "NCCL_P2P_DISABLE", "1: GPUs do not reach each other directly", kSwitch},
    {"p2p-level", "NCCL_P2P_LEVEL", "how far apart GPUs may be that do", kP2pLevels},
    {"shm-disable", "NCCL_SHM_DISABLE", "1: no memory shared inside a node", kSwitch},
    {"net-gdr-level", "NCCL_NET_GDR_LEVEL",
     "how far apart a GPU and an adapter that reaches its memory may be", kGdrLevels},
    {"cross-nic", "NCCL_CROSS_NIC", "1: a ring may change adapters between nodes; 2: where it pays", kThree},
    {"nvls-enable", "NCCL_NVLS_ENABLE", "sums inside of NVLink's switches: 0 no, 1 yes, 2 where they work",
     kThree},
    {"algo", "NCCL_ALGO", "algorithms, as in Ring,Tree or ^Tree"},
    {"proto", "NCCL_PROTO", "protocols, as in LL128,Simple or ^LL"},
    {"max-ctas", "NCCL_MAX_CTAS", "most thread blocks of a call", {}, 1, 64},
    {"buffsize", "NCCL_BUFFSIZE", "bytes between two GPUs", {}, 1024, 1L << 30},
}};

constexpr std::string_view kPrefix = "NCCL_";

/// NCCL_ variables of the process.
std::vector<NcclSetting> variables() {
  std::vector<NcclSetting> found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (!text.starts_with(kPrefix) || equals == text.npos) continue;
    found.push_back(
        {std::string(text.substr(0, equals)), std::string(text.substr(equals + 1)), "environment"});
  }
  std::sort(found.begin(), found.end(),
            [](const NcclSetting& a, const NcclSetting& b) { return a.name < b.name; });
  return found;
}

bool is_allowed(const NcclKey& key, const std::string& value) {
  if (!key.words.empty()) return std::find(key.words.begin(), key.words.end(), value) != key.words.end();
  if (key.low == key.high) return true;
  long number = 0;
  const char* const end = value.data() + value.size();
  const auto read = std::from_chars(value.data(), end, number);
  return read.ec == std::errc() && read.ptr == end && number >= key.low && number <= key.high;
}

}  // namespace

std::span<const NcclKey, kNcclKeys> nccl_keys() { return kKeys; }

void check(const NcclConfig& config, Problems& problems) {
  for (std::size_t i = 0; i < kNcclKeys; ++i) {
    const NcclKey& key = kKeys[i];
    const std::string& value = config.values[i];
    if (value.empty() || is_allowed(key, value)) continue;
    std::string allowed = fmt::format("a whole number from {} to {}", key.low, key.high);
    if (!key.words.empty()) allowed = fmt::format("one of {}", fmt::join(key.words, ", "));
    problems.add("nccl.{} = {}: use {}", key.key, value, allowed);
  }
}

NcclEnvironment::NcclEnvironment(const NcclConfig& config) {
  for (const NcclSetting& variable : variables()) given_.push_back(variable.name);
  for (std::size_t i = 0; i < kNcclKeys; ++i) {
    const std::string& value = config.values[i];
    if (value.empty()) continue;
    const std::string name(kKeys[i].variable), key = fmt::format("nccl.{}", kKeys[i].key);
    if (const char* const there = std::getenv(name.c_str())) {
      if (value != there)
        log::info("comm", "{} = {} has no effect: the environment has {}={}", key, value, name, there);
      continue;
    }
    setenv(name.c_str(), value.c_str(), 1);
    own_.push_back({name, value, key});
  }
  for (const NcclSetting& setting : settings())
    log::debug("comm", "{}={} ({})", setting.name, setting.value, setting.source);
}

NcclEnvironment::~NcclEnvironment() {
  for (const NcclSetting& setting : own_) unsetenv(setting.name.c_str());
}

std::vector<NcclSetting> NcclEnvironment::settings() const {
  std::vector<NcclSetting> all = variables();
  for (NcclSetting& setting : all) {
    const auto own = std::find_if(own_.begin(), own_.end(),
                                  [&](const NcclSetting& other) { return other.name == setting.name; });
    if (own != own_.end())
      setting.source = own->source;
    else if (std::find(given_.begin(), given_.end(), setting.name) == given_.end())
      setting.source = "NCCL's configuration file";
  }
  return all;
}

std::string to_text(std::span<const NcclSetting> settings) {
  std::string text = "# NCCL's variables on rank 0, and where each came from\n";
  for (const NcclSetting& setting : settings) {
    std::string quoted = "'";
    for (const char c : setting.value) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    text += fmt::format("# {}\n{}={}'\n", setting.source, setting.name, quoted);
  }
  return text;
}

}  // namespace cartan::comm
