#include "vocabulary.hpp"

#include <bit>

#include "cartan/core/hash.hpp"

namespace cartan::data::bpe {

Vocabulary::Vocabulary(std::size_t ids) : tokens_(ids), slots_(std::bit_ceil(2 * ids + 2), kNoToken) {}

std::size_t Vocabulary::slot_of(std::string_view content) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash_text(content) & mask;
  while (slots_[slot] != kNoToken && tokens_[static_cast<std::size_t>(slots_[slot])].content != content)
    slot = (slot + 1) & mask;
  return slot;
}

bool Vocabulary::add(std::string_view content, std::int32_t id) {
  Token& token = tokens_[static_cast<std::size_t>(id)];
  std::int32_t& slot = slots_[slot_of(content)];
  if (token.is_taken || slot != kNoToken) return false;
  token = {std::string(content), true};
  slot = id;
  return true;
}

std::int32_t Vocabulary::find(std::string_view content) const { return slots_[slot_of(content)]; }

bool Vocabulary::has(std::int32_t id) const {
  return id >= 0 && static_cast<std::size_t>(id) < tokens_.size() &&
         tokens_[static_cast<std::size_t>(id)].is_taken;
}

std::string_view Vocabulary::content(std::int32_t id) const {
  return has(id) ? std::string_view(tokens_[static_cast<std::size_t>(id)].content) : std::string_view();
}

}  // namespace cartan::data::bpe
