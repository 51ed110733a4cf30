// JSON lines of instruction data and chat templates that anyone may have written: samples whose ids and marks
// belong together, or an error that says why not.
//   input    a byte that says what it is, then the text
//            j: a Jinja chat template; else a JSON line, for the template c (chatml), l (llama3) or p (phi3)
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "cartan/core/error.hpp"
#include "data/sample_lines.hpp"

namespace {

using namespace cartan;
using namespace cartan::data;

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "samples_fuzz: %s\n", what);
  std::abort();
}

/// All bytes, two merges, the tokens of every template; some take white space along.
const Tokenizer& tokenizer() {
  static const auto made = [] {
    std::string vocabulary, added;
    for (int code = 0, other = 256; code < 256; ++code) {
      const bool is_printable = (code > 32 && code < 127) || (code > 160 && code != 173);
      char entry[32];
      std::snprintf(entry, sizeof entry, "%s\"\\u%04x\":%d", code == 0 ? "" : ",",
                    is_printable ? code : other, code);
      other += is_printable ? 0 : 1;
      vocabulary += entry;
    }
    vocabulary += R"(,"\u010a\u010a":256,"ab":257)";
    int id = 258;
    for (const char* content :
         {"<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
          "<|eot_id|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"}) {
      added += (id > 258 ? "," : "") + std::string(R"({"special":true,"content":")") + content +
               R"(","id":)" + std::to_string(id) + R"(,"rstrip":)" + (id > 263 ? "true}" : "false}");
      ++id;
    }
    return parse_tokenizer(
        R"({"added_tokens":[)" + added +
            R"(],"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},
        "decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{)" +
            vocabulary + R"(},"merges":["\u010a \u010a","a b"]}})",
        "fuzz");
  }();
  return *made;
}

const SampleEncoder& encoder(const std::string& name) {
  static std::map<std::string, std::unique_ptr<SampleEncoder>> all;
  auto& found = all[name];
  if (!found) found = std::make_unique<SampleEncoder>(tokenizer(), name, "fuzz");
  return *found;
}

void use_line(std::string_view line, const std::string& name) {
  is_sample_line(line, "text");
  CountedIds result;
  encoder(name).append(line, "lines.jsonl", 7, result);
  check(!result.ids.empty(), "an empty sample");
  check(result.ids.size() == result.counted.size(), "a mark for each id is missing");
  for (const std::int32_t id : result.ids)
    check(id >= 0 && id < tokenizer().vocab_size(), "an id outside the vocabulary");
  for (const std::uint8_t counts : result.counted) check(counts <= 1, "a mark that is none");
}

void use_template(std::string_view jinja) {
  const ChatTemplate found = recognize_chat_template(jinja, "", "", "chat_template");
  const ChatEncoder chats(tokenizer(), found);
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> counted;
  chats.append_ids(std::vector<ChatTurn>{{"user", " a\n"}, {"assistant", "\nb "}}, ids, counted);
  check(ids.size() == counted.size(), "a mark for each id is missing");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view content(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] == 'j')
      use_template(content);
    else
      use_line(content, data[0] == 'l' ? "llama3" : data[0] == 'p' ? "phi3" : "chatml");
  } catch (const DataError& error) {
    check(std::string_view(error.what()).find(data[0] == 'j' ? "chat_template" : "lines.jsonl line 7") == 0,
          "an error that does not name the place");
  }
  return 0;
}
