// Where in the ids of a text its second part begins.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "cartan/data/tokenizer.hpp"

namespace cartan::data {

/// `ids` are those of a text that begins with `head`: the number of the first of them that holds anything
/// beyond it, ids.size() if none does. Found by decoding; where that does not give the head back (white space
/// at a token that takes it along, a normalizer), by comparing with the ids that `head_alone` returns.
std::size_t first_beyond(const Tokenizer& tokenizer, std::span<const std::int32_t> ids, std::string_view head,
                         const std::function<std::vector<std::int32_t>()>& head_alone);

}  // namespace cartan::data
