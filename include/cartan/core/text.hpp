// Small helpers for what people read: sizes, counts, durations, near misses of a name.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cartan {

/// "1.5 GiB", "312 MiB", "17 B": powers of 1024.
std::string format_bytes(std::uint64_t bytes);
/// "1.24 M", "70.6 B", "512": powers of 1000.
std::string format_count(std::uint64_t count);
/// "3 s", "12 min 05 s", "2 h 07 min".
std::string format_duration(double seconds);
/// "960 or 1008": the multiples of `unit` around `value`, for messages; the smallest one where none is below.
std::string multiples_around(std::int64_t value, std::int64_t unit);
/// The candidate with the smallest edit distance, if one is near enough to be a likely typing error.
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);
std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);
/// Which of the numbers below `size` a list such as "0-3,7" names; nothing where it is no such list or names
/// others.
std::optional<std::vector<bool>> parse_ranges(std::string_view list, std::int64_t size);
/// Such a list; "all" where it would name all.
std::string format_ranges(const std::vector<bool>& named);

}  // namespace cartan
