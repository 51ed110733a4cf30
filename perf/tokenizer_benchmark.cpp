// Bytes a second that one thread encodes: the whole text as one document, as perf/compare_tokenizers.sh has
// other libraries do it.
//   tokenizer_benchmark TOKENIZER TEXT_FILE [repetitions]
// Prints one JSON line: CPU seconds of each repetition, ids, and a sum to compare them with others.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "cartan/core/error.hpp"
#include "cartan/core/file.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/version.hpp"
#include "cartan/data/tokenizer.hpp"

namespace cartan::data {
namespace {

/// Of this process: other programs on the machine count little.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// The same in perf/peers/tokenizer_encode.py.
std::uint64_t checksum(const std::vector<std::int32_t>& ids) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) sum += (i % 65521 + 1) * static_cast<std::uint64_t>(ids[i]);
  return sum;
}

int run(int argc, char** argv) {
  if (argc < 3) throw UsageError("usage: tokenizer_benchmark TOKENIZER TEXT_FILE [repetitions]");
  const double begin = cpu_seconds();
  const auto tokenizer = make_tokenizer(argv[1]);
  const double load_s = cpu_seconds() - begin;
  const std::string text = read_file(argv[2]);
  std::vector<double> seconds;
  std::vector<std::int32_t> ids;
  for (int i = 0; i < (argc > 3 ? std::atoi(argv[3]) : 3); ++i) {
    ids.clear();
    const double start = cpu_seconds();
    tokenizer->append_ids(text, true, ids);
    seconds.push_back(cpu_seconds() - start);
  }
  fmt::print("{}\n", Json{{"version", version()},
                          {"load_s", load_s},
                          {"bytes", text.size()},
                          {"seconds", seconds},
                          {"ids", ids.size()},
                          {"checksum", checksum(ids)}}
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
