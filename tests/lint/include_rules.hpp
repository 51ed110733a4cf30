// The rules on who may include what. The include root is shared by all rooms, so a compiler accepts every
// edge; these rules read the text of a file and name each line that breaks one. The table is that of
// docs/architecture.md.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace cartan::lint {

/// A line that breaks a rule: `src/optim/adamw.cpp:7: room 'optim' includes ...`.
struct Violation {
  std::string file;
  int line = 0;
  std::string message;

  std::string text() const;
};

/// Room -> the rooms whose headers it may include (its own aside).
const std::map<std::string, std::vector<std::string>, std::less<>>& allowed_rooms();

/// The room that owns a path relative to the repository's root: `comm` of `src/comm/mpi/session.cpp` and of
/// `include/cartan/comm/mesh.hpp`; empty for other paths.
std::string room_of(std::string_view path);

/// Every violation in one file. `path` is relative to the repository's root, `content` is the file's text.
std::vector<Violation> check_file(std::string_view path, std::string_view content);

}  // namespace cartan::lint
