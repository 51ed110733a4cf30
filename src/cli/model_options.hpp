// Options of the commands that take a model.
#pragma once

#include <string>

#include "cli/option.hpp"

namespace cartan::cli {

inline Option from_option(std::string& from) {
  return {.key = "from",
          .target = &from,
          .help =
              "a checkpoint, a run directory (its newest good one), a Hugging Face folder, or a folder of "
              "adapters",
          .value_name = "PATH",
          .is_required = true};
}

inline Option base_option(std::string& base) {
  return {.key = "base",
          .target = &base,
          .help =
              "the model that adapters, or a checkpoint of parameters trained alone, belong to, where it is "
              "no longer where they say",
          .value_name = "PATH",
          .may_be_empty = true};
}

}  // namespace cartan::cli
