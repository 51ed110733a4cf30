// Continuations on standard output, in the order of their prompts, whichever is over first.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/prompts.hpp"

namespace cartan::cli {

/// A continuation that is over.
struct Written {
  std::string text;
  infer::Continuation continuation;
};
/// {"text", "ids", "finish"}, and back.
Json to_json(const Written& written);
Written written_from_json(const Json& json);

enum class OutputForm {
  text,    ///< each prompt and its continuation, once that is over
  stream,  ///< the same as it comes
  json,    ///< an object a line
};

class TextWriter {
 public:
  /// Keeps a reference to the prompts.
  TextWriter(const std::vector<Prompt>& prompts, OutputForm form);

  /// The text of a prompt so far; it only grows, and is no longer used once another is given.
  void update(std::size_t number, const std::string& text);
  void finish(std::size_t number, Written written);

 private:
  /// Prints what the prompt whose turn it is has, and goes on to the next if it is over.
  void go_on();

  const std::vector<Prompt>& prompts_;
  OutputForm form_;
  std::vector<std::string> texts_;
  std::vector<std::optional<Written>> written_;
  std::size_t turn_ = 0, printed_ = 0;  ///< printed: bytes of the text whose turn it is
  bool has_begun_ = false;              ///< its prompt is there
};

}  // namespace cartan::cli
