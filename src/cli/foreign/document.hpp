// Reads a file of another trainer, JSON or YAML, into one kind of tree. Such files are small; whatever a file
// holds, reading takes time and memory in proportion to its size.
#pragma once

#include <string>
#include <string_view>

#include "cartan/core/json.hpp"

namespace cartan::cli::foreign {

/// The object at the top of `text`: JSON (with // comments) if it begins with '{', else YAML, whose plain
/// scalars are null, booleans (yes, no, on and off among them), numbers or texts. Throws DataError that names
/// `path` and the line: wrong syntax, no object at the top, a key that stands twice, YAML aliases, several
/// documents, and what is larger (1 MiB, 10,000 values) or deeper (32 levels) than such a file can be.
Json parse_document(std::string_view text, std::string_view path);

}  // namespace cartan::cli::foreign
