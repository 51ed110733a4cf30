// Token contents and ids: a table from id to content, and a hash table back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cartan::data::bpe {

/// The id that no token has.
inline constexpr std::int32_t kNoToken = -1;

/// Contents are distinct; ids may have gaps.
class Vocabulary {
 public:
  /// Room for ids below `ids`.
  explicit Vocabulary(std::size_t ids = 0);
  /// False if the content or the id is taken.
  bool add(std::string_view content, std::int32_t id);
  /// kNoToken if there is none.
  std::int32_t find(std::string_view content) const;
  bool has(std::int32_t id) const;
  /// Empty where the id is not taken.
  std::string_view content(std::int32_t id) const;
  std::size_t ids() const { return tokens_.size(); }

 private:
  struct Token {
    std::string content;
    bool is_taken = false;
  };
  std::size_t slot_of(std::string_view content) const;

  std::vector<Token> tokens_;
  std::vector<std::int32_t> slots_;  ///< a power of two, at most half of them taken
};

}  // namespace cartan::data::bpe
