// One option: a key, the variable that it fills, what is allowed, and one line of help. Tables of options are
// plain lists of this struct; parsing, range checks, help and INI output all follow from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cartan/core/types.hpp"

namespace cartan::cli {

/// The variable of an option. Its value before parsing is the default.
using Target = std::variant<bool*, int*, Index*, std::uint64_t*, double*, std::string*,
                            std::vector<std::string>*, std::vector<double>*>;

/// Numbers from `low` to `high`; `open_*` excludes the end itself.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool open_low = false, open_high = false;
};
inline Range at_least(double low) { return {.low = low}; }
inline Range above(double low) { return {.low = low, .open_low = true}; }
inline Range between(double low, double high) { return {.low = low, .high = high}; }
/// [low, high).
inline Range from_below(double low, double high) { return {.low = low, .high = high, .open_high = true}; }

struct Option {
  std::string key;  ///< "model.hidden", or a command's own "prompt"
  Target target;
  std::string help;                     ///< one line, without the default
  std::string unit = {};                ///< of a number
  std::string value_name = {};          ///< in help; else it follows from the type
  std::string short_name = {};          ///< "steps": --steps means --run.steps
  Range range = {};                     ///< of a number
  std::vector<std::string> words = {};  ///< the texts that are allowed; empty: any
  bool may_be_empty = false;            ///< of a text
  bool is_flag = false;                 ///< of a bool: takes no value, being there means true
  bool is_repeated = false;  ///< of texts: each time that it is given adds one, with all its blanks
  bool is_required = false;  ///< a command's own option that must be given
};

/// Whether one value is several words.
bool is_list(const Option& option);

/// Sets the variable. Returns what is allowed if `text` is not ("a whole number, at least 1"), and leaves the
/// variable as it was.
std::optional<std::string> set_value(const Option& option, std::string_view text);
/// What the variable holds, as set_value() reads it: numbers round-trip exactly, lists are joined by blanks.
std::string value_text(const Option& option);
/// "a whole number from 0 to 3", "one of fp32, bf16".
std::string allowed_text(const Option& option);
/// For help: "N", "X", "cpu|cuda", "PATH...".
std::string placeholder(const Option& option);

/// The words between blanks.
std::vector<std::string> split_words(std::string_view text);
/// A stranger's text for a message: control characters escaped, cut after `longest` bytes.
std::string printable(std::string_view text, std::size_t longest = 60);

}  // namespace cartan::cli
