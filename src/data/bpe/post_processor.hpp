// The post-processor of tokenizer.json: special tokens before and after a text.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "json_field.hpp"
#include "vocabulary.hpp"

namespace cartan::data::bpe {

struct Template {
  std::vector<std::int32_t> before, after;
};

/// What belongs around a single text. Throws DataError for types that are not supported, and for ids that
/// `is_token` does not know.
Template read_post_processor(const std::optional<JsonField>& field,
                             const std::function<bool(std::int32_t)>& is_token);

}  // namespace cartan::data::bpe
