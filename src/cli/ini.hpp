// INI text: `[section]` and `name = value` lines, each with the number of its line.
// Boost.Program_options reads such files too, but does not say which line a value came from, and messages
// must.
//
//   # comment            a line of its own, also with ';'
//   [model]
//   hidden = 256         # comment behind a blank
//   [run]
//   dir = "my runs/#1"   quoted where blanks at an end or '#' matter; \" \\ \n \r \t inside
//   model.layers = 4     only before the first section: the whole key
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cartan/core/error.hpp"

namespace cartan::cli {

struct IniEntry {
  std::string key;  ///< "section.name"
  std::string value;
  int line = 0;  ///< 1-based
};

/// Entries in the order of the file. Lines that cannot be read, and a key that stands twice, are problems
/// named `path`:LINE; of two equal keys the first counts.
std::vector<IniEntry> parse_ini(std::string_view text, std::string_view path, Problems& problems);

/// `value` as it stands behind '=', quoted if it must be.
std::string ini_value(std::string_view value);

}  // namespace cartan::cli
