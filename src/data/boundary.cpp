#include "boundary.hpp"

#include <algorithm>

namespace cartan::data {

std::size_t first_beyond(const Tokenizer& tokenizer, std::span<const std::int32_t> ids, std::string_view head,
                         const std::function<std::vector<std::int32_t>()>& head_alone) {
  const auto common_with_alone = [&] {
    const std::vector<std::int32_t> alone = head_alone();
    const std::size_t most = std::min(alone.size(), ids.size());
    const auto end = alone.begin() + static_cast<std::ptrdiff_t>(most);
    return static_cast<std::size_t>(std::mismatch(alone.begin(), end, ids.begin()).first - alone.begin());
  };
  const std::unique_ptr<TokenDecoder> decoder = tokenizer.decoder({});
  std::string text;
  std::size_t settled = 0;  // tokens whose text is there: a decoder holds back what is not complete
  for (std::size_t i = 0; i < ids.size() && text.size() <= head.size(); ++i) {
    if (settled == i && text == head) return i;
    const std::string more = decoder->push(ids[i]);
    text += more;
    if (text.size() > head.size() && text.starts_with(head))
      return settled == i ? i : std::clamp(common_with_alone(), settled, i);
    if (!more.empty()) settled = i + 1;
  }
  if (text.size() <= head.size() && text + decoder->finish() == head) return ids.size();
  return common_with_alone();
}

}  // namespace cartan::data
