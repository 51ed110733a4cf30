// What `cartan generate` is asked to go on with: texts, lists of ids, or JSON lines with a rule each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cartan/core/json.hpp"
#include "cartan/data/tokenizer.hpp"
#include "cartan/infer/generator.hpp"

namespace cartan::cli {

/// What holds where a prompt says nothing else.
struct PromptDefaults {
  infer::GenerateOptions options;
  std::vector<std::string> stops;
};

struct Prompt {
  infer::Request request;
  std::string text;                ///< empty where ids were given
  std::vector<std::string> stops;  ///< texts that end the continuation, which does not contain them
  Json id;                         ///< of a JSON line: goes into the result; null: none
};

/// One text.
Prompt prompt_of_text(std::string text, std::string name, const data::Tokenizer& tokenizer,
                      const PromptDefaults& defaults);

// From the content of a file; `name` is that of the file. All throw DataError that names the line or list of
// what is wrong, or that there is no prompt.

/// One text a line.
std::vector<Prompt> prompts_of_lines(std::string_view content, const std::string& name,
                                     const data::Tokenizer& tokenizer, const PromptDefaults& defaults);
/// A JSON list of lists of ids.
std::vector<Prompt> prompts_of_id_lists(std::string_view content, const std::string& name,
                                        const PromptDefaults& defaults);
/// A JSON object a line, lines without text aside: `prompt` (a text) or `ids` (a list); and may have `id`,
/// `max_new_tokens`, `temperature`, `top_k`, `top_p`, `repetition_penalty`, `seed` and `stop` (a text or a
/// list of them).
std::vector<Prompt> prompts_of_json_lines(std::string_view content, const std::string& name,
                                          const data::Tokenizer& tokenizer, const PromptDefaults& defaults);

}  // namespace cartan::cli
