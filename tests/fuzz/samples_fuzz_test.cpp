// The fuzzer's entry point over small lines and thousands of changes of them, the same in every run.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

void run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
}

std::vector<std::string> seeds() {
  const std::string chat =
      R"({"messages":[{"role":"system","content":"Be\n brief"},{"role":"user","content":" hi <|im_end|>"},)"
      R"({"role":"assistant","content":"\n\nab \u4f60","tool_calls":null}],"tools":[]})";
  return {
      "c" + chat,
      "l" + chat,
      "p" + chat,
      R"(c{"prompt":"a","completion":"b\u00e9 ab","id":1})",
      R"(c{"input_ids":[1,2,257,0],"labels":[-100,2,-100,0]})",
      "j{{ bos_token }}<|im_start|>system\\nYou are.<|im_end|>",
      "j<|im_start|>system\\nYou \xff trim<|im_end|>",
      "j'<|start_header_id|>' + message['content'] | trim + '<|eot_id|>'",
      "j<|user|>\n<|end|><|assistant|>{{ eos_token }}",
  };
}

TEST(SamplesFuzz, GoodLines) {
  for (const std::string& line : seeds()) run(line);
  run("");
  for (const char kind : {'c', 'l', 'p', 'j'}) run(std::string(1, kind));
}

TEST(SamplesFuzz, ChangedLines) {
  std::mt19937 random(99);
  const std::vector<std::string> all = seeds();
  const std::vector<std::string> pieces = {"null",
                                           "-1",
                                           "1e999",
                                           "\"\"",
                                           "[]",
                                           "{}",
                                           "true",
                                           "258",
                                           "\xff",
                                           "[[[[",
                                           "\\ud800",
                                           "0.3",
                                           "\"role\"",
                                           "<|im_start|>system\\n",
                                           "\"messages\":[],",
                                           "18446744073709551615"};
  for (int round = 0; round < 20000; ++round) {
    std::string line = all[random() % all.size()];
    for (unsigned change = 0; change <= random() % 3; ++change) {
      const std::size_t at = 1 + random() % line.size();
      if (at >= line.size()) continue;
      switch (random() % 4) {
        case 0:
          line[at] = static_cast<char>(random());
          break;
        case 1:
          line.erase(at, 1 + random() % 12);
          break;
        case 2:
          line.insert(at, pieces[random() % pieces.size()]);
          break;
        default: {  // a value becomes another
          const std::size_t colon = line.find(':', at);
          if (colon == std::string::npos) break;
          const std::size_t end = std::min(line.find_first_of(",}]", colon), line.size());
          line.replace(colon + 1, end - colon - 1, pieces[random() % pieces.size()]);
        }
      }
    }
    run(line);
  }
}

}  // namespace
