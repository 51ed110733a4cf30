// Which token ends a text: tokenizer.json does not say, the files beside it do.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

namespace cartan::data::bpe {

/// The end token of the tokenizer in `file`; nothing where no file and no well-known name tells. `id_of`
/// knows tokens by content, `is_token` ids. Throws DataError for files that name unknown tokens.
std::optional<std::int32_t> find_end_token(
    std::string_view file, const std::function<std::optional<std::int32_t>(std::string_view)>& id_of,
    const std::function<std::optional<std::int32_t>(std::string_view)>& added_id_of,
    const std::function<bool(std::int32_t)>& is_token);

}  // namespace cartan::data::bpe
