// Chat templates: from the turns of a chat to token ids, and which of them the model learns to say. Three
// families, written as the templates that their models were published with (Hugging Face's `chat_template`):
//   chatml  <|im_start|>ROLE\nTEXT<|im_end|>\n                                  (Qwen2, SmolLM2, ...)
//   llama3  <|start_header_id|>ROLE<|end_header_id|>\n\nTEXT<|eot_id|>  after one <|begin_of_text|>
//   phi3    <|ROLE|>\nTEXT<|end|>\n                                     before one <|endoftext|>
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cartan/data/tokenizer.hpp"

namespace cartan::data {

struct ChatTemplate {
  enum class Family { chatml, llama3, phi3 };
  Family family = Family::chatml;
  std::string begin = {};   ///< a token before everything; empty: none
  std::string end = {};     ///< a token after everything; empty: none
  std::string system = {};  ///< text of the system turn of a chat that begins with another one; empty: none
  bool trims = false;       ///< white space around a turn's text is left out
  friend bool operator==(const ChatTemplate&, const ChatTemplate&) = default;
};

/// Allowed values of data.template.
inline constexpr std::string_view kChatTemplateNames[] = {"auto", "chatml", "llama3", "phi3"};

/// chatml (without a default system turn), llama3 or phi3.
ChatTemplate chat_template_of(std::string_view family);

/// Recognizes the published Jinja text of a family by what it contains; nothing of it is executed. `bos` and
/// `eos` are the tokens that it calls bos_token and eos_token. Throws DataError that begins with `where` and
/// says what the text looks like, and to choose by name.
ChatTemplate recognize_chat_template(std::string_view jinja, std::string_view bos, std::string_view eos,
                                     std::string_view where);

/// The template of the key data.template. auto: the one in chat_template.jinja or tokenizer_config.json
/// beside the tokenizer.json that `tokenizer` (the key data.tokenizer) names. Throws ConfigError, IoError,
/// DataError.
ChatTemplate resolve_chat_template(std::string_view name, std::string_view tokenizer);

struct ChatTurn {
  std::string role, text;  ///< UTF-8
};

/// Immutable; may be called by several threads.
class ChatEncoder {
 public:
  /// Keeps a reference to `tokenizer`. Throws ConfigError for a token of the template that it has not.
  ChatEncoder(const Tokenizer& tokenizer, ChatTemplate chat_template);

  /// Why a role cannot be rendered; empty if it can.
  std::string why_not_role(std::string_view role) const;

  /// Appends the ids of a whole chat, those of transformers' apply_chat_template with add_generation_prompt =
  /// False, but for special tokens that a turn's text spells: they are ordinary text here. `counted` receives
  /// one value for each id: 1 for the text of the assistant's turns and the token that ends each of them,
  /// else 0. A token that holds the end of a turn's head and the beginning of its text counts.
  void append_ids(std::span<const ChatTurn> turns, std::vector<std::int32_t>& ids,
                  std::vector<std::uint8_t>& counted) const;

 private:
  /// A token, or a text of which the first `head` bytes belong to the template.
  struct Piece {
    std::int32_t token = -1;
    std::string text = {};
    std::size_t head = 0;
    bool is_counted = false;
  };
  std::int32_t token_of(std::string_view content) const;
  void add_turn(std::string_view role, std::string_view text, std::vector<Piece>& pieces) const;

  const Tokenizer& tokenizer_;
  ChatTemplate template_;
  std::vector<Piece> begin_, end_;        ///< no more than one each
  std::vector<std::int32_t> turn_begin_;  ///< chatml: one; llama3: two, around the role; phi3: one a role
  std::int32_t turn_end_ = 0;
};

}  // namespace cartan::data
