// The commands of cartan.
#include <array>

#include "cli/command.hpp"

namespace cartan::cli {

std::span<const CommandEntry> commands() {
  static const std::array entries{
      CommandEntry{"train", make_train},       CommandEntry{"eval", make_eval},
      CommandEntry{"generate", make_generate}, CommandEntry{"tokenize", make_tokenize},
      CommandEntry{"import", make_import},     CommandEntry{"export", make_export},
      CommandEntry{"inspect", make_inspect},   CommandEntry{"config", make_config},
      CommandEntry{"plan", make_plan},         CommandEntry{"verify", make_verify},
      CommandEntry{"doctor", make_doctor},
  };
  return entries;
}

}  // namespace cartan::cli
