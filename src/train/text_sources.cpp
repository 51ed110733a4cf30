#include "cartan/train/text_sources.hpp"

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "cartan/core/narrow.hpp"
#include "cartan/data/token_cache.hpp"

namespace cartan::train {
namespace {

void broadcast(std::string& text, comm::Communicator& world) {
  std::int64_t size = world.max(world.rank() == 0 ? narrow<std::int64_t>(text.size()) : 0);
  text.resize(narrow<std::size_t>(size));
  world.broadcast_host(std::as_writable_bytes(std::span(text)), 0);
}

}  // namespace

data::DataConfig with_token_files(data::DataConfig config, const std::filesystem::path& folder, int threads,
                                  comm::Communicator& world) {
  const std::filesystem::path cache = config.cache.empty() ? folder : std::filesystem::path(config.cache);
  for (auto* const list : {&config.train, &config.valid}) {
    std::vector<std::string> words;
    for (const std::string& element : *list) {
      std::istringstream stream(element);
      for (std::string word; stream >> word;) {
        if (data::is_text_source(word)) {
          std::string prefix;
          comm::all_or_none(world, "tokenizing", [&] {
            if (cache.empty())
              throw ConfigError(
                  "{}: say with data.cache in which folder its token files may be made, or make "
                  "them with cartan tokenize",
                  word);
            if (world.rank() == 0) prefix = data::cached_tokens(word, config, cache, std::max(1, threads));
          });
          broadcast(prefix, world);
          word = prefix;
        }
        words.push_back(word);
      }
    }
    *list = words;
  }
  return config;
}

}  // namespace cartan::train
