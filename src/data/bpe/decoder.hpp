// The decoder of tokenizer.json: from tokens to text, as they come.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "json_field.hpp"

namespace cartan::data::bpe {

/// One step for one text: takes token contents one after another, hands on what is final. Steps that need
/// what follows keep it until finish().
class DecodeStep {
 public:
  virtual ~DecodeStep() = default;
  virtual void push(std::string token, std::vector<std::string>& out) = 0;
  virtual void finish(std::vector<std::string>&) {}
};

/// Immutable; makes the steps of a text.
class Decoder {
 public:
  /// Null joins tokens with spaces. Throws DataError.
  explicit Decoder(const std::optional<JsonField>& field);

  /// The steps of one text. `at_start`: its first token is the first of the whole text.
  std::vector<std::unique_ptr<DecodeStep>> start(bool at_start) const;

 private:
  /// `is_fused`: tokens come in pieces that belong to one, because an earlier step joined them.
  using Maker = std::function<std::unique_ptr<DecodeStep>(bool at_start, bool is_fused)>;
  void read(const JsonField& field, int depth);
  std::vector<Maker> makers_;
  std::vector<bool> is_fused_;
  bool fuses_ = false;  ///< what was read so far joins all tokens
  bool is_bytes_ = false;
};

}  // namespace cartan::data::bpe
