// The ids of pieces met before. Words repeat, so most pieces are found here. One cache line a piece and one
// place for it: the newest piece stays, and memory is bounded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace cartan::data::bpe {

/// For one thread.
class PieceCache {
 public:
  static constexpr std::size_t kLongestPiece = 31;  ///< bytes
  static constexpr std::size_t kMostIds = 7;

  /// A piece in the form in which it is looked up.
  struct Key {
    std::uint64_t words[4] = {0, 0, 0, 0};  ///< the bytes, zeros, and the length in the last byte
    Key() = default;                        ///< no piece is empty, so this is none
    /// `piece` is not empty. Whole words are read, which is faster than copying a number of bytes that
    /// varies; the last of them overlaps the one before.
    explicit Key(std::string_view piece) {
      const char* const begin = piece.data();
      const std::size_t size = piece.size(), full = (size - 1) / 8, rest = size - 8 * full;  // rest: 1 ... 8
      for (std::size_t i = 0; i < full; ++i) words[i] = load<std::uint64_t>(begin + 8 * i);
      if (full > 0)
        words[full] = load<std::uint64_t>(begin + size - 8) >> (8 * (8 - rest));
      else
        words[0] = first_word(begin, size);
      words[3] |= std::uint64_t{size} << 56;
    }
    friend bool operator==(const Key& a, const Key& b) {
      return ((a.words[0] ^ b.words[0]) | (a.words[1] ^ b.words[1]) | (a.words[2] ^ b.words[2]) |
              (a.words[3] ^ b.words[3])) == 0;
    }
    std::uint64_t hash() const {
      std::uint64_t h = words[0] * 0x9E3779B97F4A7C15U ^ words[1] * 0xC2B2AE3D27D4EB4FU;
      h = (h ^ h >> 32) * 0xD6E8FEB86659FD93U;
      h ^= words[2] * 0x165667B19E3779F9U ^ words[3] * 0xFF51AFD7ED558CCDU;
      h = (h ^ h >> 32) * 0xD6E8FEB86659FD93U;
      return h;
    }

   private:
    template <class T>
    static std::uint64_t load(const char* from) {
      T value;
      std::memcpy(&value, from, sizeof value);
      return value;
    }
    /// 1 to 8 bytes, and zeros.
    static std::uint64_t first_word(const char* begin, std::size_t size) {
      if (size >= 4)
        return load<std::uint32_t>(begin) | load<std::uint32_t>(begin + size - 4) << (8 * (size - 4));
      const std::uint64_t first = load<std::uint8_t>(begin), last = load<std::uint8_t>(begin + size - 1);
      return first | load<std::uint8_t>(begin + size / 2) << (8 * (size / 2)) | last << (8 * (size - 1));
    }
  };

  /// Empties the cache if it belongs to another tokenizer than `owner`, a number that is not 0.
  void belong_to(std::uint64_t owner) {
    if (owner_ == owner) return;
    slots_.assign(kSlots, Slot{});
    owner_ = owner;
  }

  /// Appends the ids of a piece; false if it is not here.
  bool append(const Key& key, std::vector<std::int32_t>& ids) const {
    const Slot& slot = slots_[key.hash() >> kShift];
    if (!(slot.key == key)) return false;
    if (slot.count == 1)
      ids.push_back(slot.ids[0]);
    else
      ids.insert(ids.end(), slot.ids, slot.ids + slot.count);
    return true;
  }

  void put(const Key& key, std::span<const std::int32_t> ids) {
    if (ids.size() > kMostIds) return;
    Slot& slot = slots_[key.hash() >> kShift];
    slot.key = key;
    slot.count = static_cast<std::uint32_t>(ids.size());
    std::copy(ids.begin(), ids.end(), slot.ids);
  }

 private:
  static constexpr int kShift = 64 - 14;
  static constexpr std::size_t kSlots = std::size_t{1} << 14;  ///< 1 MiB, as a core's second cache
  struct alignas(64) Slot {
    Key key;
    std::uint32_t count = 0;
    std::int32_t ids[kMostIds] = {};
  };
  std::vector<Slot> slots_;
  std::uint64_t owner_ = 0;
};

}  // namespace cartan::data::bpe
