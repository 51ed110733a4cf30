// Regular expressions of tokenizer.json. They are written for Oniguruma, whose classes and flags mean other
// characters than PCRE2's, so they are translated; what cannot be translated is refused.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace cartan::data::bpe {

/// The PCRE2 pattern that matches what Oniguruma matches with `pattern`. Throws DataError (without a file).
std::string translate_pattern(std::string_view pattern);

struct Match {
  std::size_t begin, end;
};

/// Immutable; one object serves all threads.
class Regex {
 public:
  /// Throws DataError for a pattern that does not compile.
  explicit Regex(std::string_view pattern);
  /// The first match that begins at `from` or later. `text` is valid UTF-8. Throws DataError if the pattern
  /// needs more steps on this text than PCRE2 allows.
  std::optional<Match> find(std::string_view text, std::size_t from) const;

 private:
  struct Free {
    void operator()(void* code) const;
  };
  std::string source_;
  std::unique_ptr<void, Free> code_;
  bool is_compiled_ = false;  ///< to machine code
};

}  // namespace cartan::data::bpe
