// The config.json of a Hugging Face folder, to and from the description of a model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cartan/core/json_fwd.hpp"
#include "cartan/model/config.hpp"

namespace cartan::store {

/// Reads what transformers 4 and 5 write for models of type llama, mistral, qwen2, qwen3 and phi3. Throws
/// MissingError, IoError, or DataError that lists every entry that is missing, wrong, or changes the
/// mathematics in a way that cartan does not follow; an entry that cartan does not know is one of these.
model::ModelConfig read_model_config(const std::filesystem::path& path);
/// The same from its text; `where` names it.
model::ModelConfig model_config_from_hugging_face(const Json& json, const std::string& where);

/// The ids that end a text: eos_token_id, a number or a list, of a folder's generation_config.json, or else
/// of its config.json; empty where neither names any. Throws IoError, and DataError that names the file.
std::vector<std::int32_t> read_end_tokens(const std::filesystem::path& folder);

/// llama | mistral | qwen2 | qwen3 | phi3: config.family, or the first of them that has all that the model
/// has. Throws ConfigError that says what no family, or not the one that is named, has.
std::string family_of(const model::ModelConfig& config);
/// What transformers reads as this model, with parameters of type `dtype`. Token ids of the tokenizer are not
/// in it. Throws ConfigError as family_of does.
Json model_config_to_hugging_face(const model::ModelConfig& config, DType dtype);

}  // namespace cartan::store
