// A tokenizer.json that anyone may have written, and a text: either an error that says why, or ids that are
// tokens, the same for the text in parts, and a text back.
//   input    the JSON text, a zero byte, the text; without a zero byte the whole is the text for a small
//            byte-level tokenizer, which must give it back
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "cartan/core/error.hpp"
#include "cartan/data/tokenizer.hpp"
#include "cartan/data/utf8.hpp"

namespace {

using namespace cartan;
using namespace cartan::data;

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "tokenizer_fuzz: %s\n", what);
  std::abort();
}

/// All bytes, a few merges, the pattern of Llama 3.
const Tokenizer& byte_level() {
  static const auto tokenizer = [] {
    std::string vocabulary;
    for (int code = 0, other = 256; code < 256; ++code) {
      const bool is_printable = (code > 32 && code < 127) || (code > 160 && code != 173);
      char entry[32];
      std::snprintf(entry, sizeof entry, "%s\"\\u%04x\":%d", code == 0 ? "" : ",",
                    is_printable ? code : other, code);
      other += is_printable ? 0 : 1;
      vocabulary += entry;
    }
    vocabulary += R"(,"th":256,"the":257,"\u0120the":258,"\u0120\u0120":259,"\u010a\u010a":260)";
    return parse_tokenizer(
        R"x({"added_tokens":[{"id":300,"content":"<|end|>","special":true}],"pre_tokenizer":{"type":"Sequence","pretokenizers":[
        {"type":"Split","pattern":{"Regex":"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false},
        {"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]},
        "decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{)x" +
            vocabulary + R"x(},"merges":["t h","th e","\u0120 the","\u0120 \u0120","\u010a \u010a"]}})x",
        "fuzz");
  }();
  return *tokenizer;
}

void use(const Tokenizer& tokenizer, std::string_view text, bool gives_back) {
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  for (const std::int32_t id : ids)
    check(id >= 0 && id < tokenizer.vocab_size(), "an id outside the vocabulary");
  const std::string whole = valid_utf8(tokenizer.decode(ids));
  if (gives_back) check(whole == valid_utf8(text), "another text comes back");
  DecodeStream stream(tokenizer);
  std::string shown;
  for (const std::int32_t id : ids) shown += stream.push(id);
  check(shown + stream.finish() == whole, "a stream decodes to another text");
  const std::size_t cut = tokenizer.stable_prefix(text);
  check(cut <= text.size(), "a prefix that is longer than the text");
  if (cut == 0) return;
  std::vector<std::int32_t> parts;
  tokenizer.append_ids(text.substr(0, cut), true, parts);
  tokenizer.append_ids(text.substr(cut), false, parts);
  check(parts == ids, "a text in parts has other ids");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = input.find('\0');
  if (zero == std::string_view::npos) {
    use(byte_level(), input, true);
    return 0;
  }
  try {
    use(*parse_tokenizer(input.substr(0, zero), "fuzz.json"), input.substr(zero + 1), false);
  } catch (const DataError&) {
    // What is wrong with the file, or a pattern that needs too many steps on this text.
  }
  return 0;
}
