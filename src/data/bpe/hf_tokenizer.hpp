// A tokenizer in the format of Hugging Face's tokenizers library: tokenizer.json, version 1.0.
#pragma once

#include <memory>
#include <string_view>

#include "cartan/data/tokenizer.hpp"

namespace cartan::data::bpe {

/// `json` is the content of `file`; files beside that one say which token ends a text. Throws DataError.
std::unique_ptr<Tokenizer> make_hf_tokenizer(std::string_view json, std::string_view file,
                                             std::string_view name);

}  // namespace cartan::data::bpe
