// Bytes a second that one thread encodes: the whole text as one document, as perf/compare_tokenizers.sh has
// other libraries do it.
//   tokenizer_benchmark TOKENIZER TEXT_FILE [repetitions]
// Prints one JSON line: seconds of each repetition, ids, and a hash of them to compare with others.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cartan/core/error.hpp"
#include "cartan/core/file.hpp"
#include "cartan/core/hash.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/version.hpp"
#include "cartan/data/tokenizer.hpp"

namespace cartan::data {
namespace {

int run(int argc, char** argv) {
  if (argc < 3) throw UsageError("usage: tokenizer_benchmark TOKENIZER TEXT_FILE [repetitions]");
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const auto begin = Clock::now();
  const auto tokenizer = make_tokenizer(argv[1]);
  const double load_s = seconds_since(begin);
  const std::string text = read_file(argv[2]);
  std::vector<double> seconds;
  std::vector<std::int32_t> ids;
  for (int i = 0; i < (argc > 3 ? std::atoi(argv[3]) : 3); ++i) {
    ids.clear();
    const auto start = Clock::now();
    tokenizer->append_ids(text, true, ids);
    seconds.push_back(seconds_since(start));
  }
  fmt::print("{}\n", Json{{"version", version()},
                          {"load_s", load_s},
                          {"bytes", text.size()},
                          {"seconds", seconds},
                          {"ids", ids.size()},
                          {"hash", fmt::format("{:016x}", hash_bytes(std::as_bytes(std::span(ids))))}}
                         .dump());
  return 0;
}

}  // namespace
}  // namespace cartan::data

int main(int argc, char** argv) {
  try {
    return cartan::data::run(argc, argv);
  } catch (const cartan::Error& error) {
    std::fprintf(stderr, "tokenizer_benchmark: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
