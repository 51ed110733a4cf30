// NCCL is tuned by environment variables, which it reads when it is called first. Keys nccl.* of the
// configuration stand for the ones that runs need; whatever is in force can be listed with where it came
// from.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cartan/core/error.hpp"

namespace cartan::comm {

/// What nccl.KEY takes: one of `words`, a whole number from `low` to `high` where low < high, or any text.
struct NcclKey {
  std::string_view key, variable;  ///< "ib-disable", "NCCL_IB_DISABLE"
  std::string_view help;
  std::span<const std::string_view> words{};
  long low = 0, high = 0;
};

inline constexpr std::size_t kNcclKeys = 21;
/// All of them, for every NCCL from 2.19 on.
std::span<const NcclKey, kNcclKeys> nccl_keys();

struct NcclConfig {
  std::array<std::string, kNcclKeys> values;  ///< in the order of nccl_keys(); empty: not set
};

/// Adds what NCCL would not understand.
void check(const NcclConfig& config, Problems& problems);

struct NcclSetting {
  std::string name, value, source;
};

/// Puts the values of a configuration into the environment of the process, to be made before NCCL is called
/// and before threads look there. A variable that is there already stays: sites set them for the machine, and
/// people for one run; a line of the log says so. They go when it goes. Not thread-safe.
class NcclEnvironment {
 public:
  explicit NcclEnvironment(const NcclConfig& config);
  NcclEnvironment(const NcclEnvironment&) = delete;
  NcclEnvironment& operator=(const NcclEnvironment&) = delete;
  ~NcclEnvironment();

  /// Every NCCL_ variable in force, by name. Sources: "environment", "nccl.ib-disable", or, once NCCL was
  /// called, "NCCL's configuration file" (NCCL_CONF_FILE, ~/.nccl.conf, /etc/nccl.conf).
  std::vector<NcclSetting> settings() const;

 private:
  std::vector<std::string> given_;  ///< names that were there before
  std::vector<NcclSetting> own_;    ///< put there
};

/// Lines that a shell can read, NAME=VALUE, each below a comment that names the source.
std::string to_text(std::span<const NcclSetting> settings);

}  // namespace cartan::comm
