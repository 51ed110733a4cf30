#include "json_field.hpp"

#include <algorithm>

#include "cartan/data/utf8.hpp"

namespace cartan::data::bpe {

std::string brief(const SortedJson& value) {
  if (value.is_structured()) return fmt::format("a JSON {}", value.type_name());
  constexpr std::size_t kLongest = 80;
  const std::string text = value.dump(-1, ' ', false, SortedJson::error_handler_t::replace);
  return text.size() <= kLongest ? text : valid_utf8(text.substr(0, kLongest)) + "...";
}

void JsonField::expect(bool holds, std::string_view kind) const {
  if (!holds) refuse("expected {}, found a JSON {}", kind, value_->type_name());
}

void JsonField::allow(std::initializer_list<std::string_view> keys) const {
  expect(value_->is_object(), "an object");
  for (const auto& [key, member] : value_->items())
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      refuse("the key \"{}\" is not known; expected {}", key, fmt::join(keys, ", "));
}

std::optional<JsonField> JsonField::find(std::string_view key) const {
  expect(value_->is_object(), "an object");
  const auto member = value_->find(key);
  if (member == value_->end() || member->is_null()) return std::nullopt;
  return JsonField(*member, file_, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key));
}

JsonField JsonField::at(std::string_view key) const {
  const std::optional<JsonField> member = find(key);
  if (!member) refuse("the key \"{}\" is missing", key);
  return *member;
}

std::size_t JsonField::size() const {
  expect(value_->is_array(), "an array");
  return value_->size();
}

JsonField JsonField::at(std::size_t index) const {
  return {(*value_)[index], file_, fmt::format("{}[{}]", path_, index)};
}

const std::string& JsonField::text() const {
  expect(value_->is_string(), "a string");
  return value_->get_ref<const std::string&>();
}

bool JsonField::flag() const {
  expect(value_->is_boolean(), "true or false");
  return value_->get<bool>();
}

std::int64_t JsonField::number(std::int64_t largest) const {
  const bool fits = value_->is_number_integer() && *value_ >= 0 && *value_ <= largest;
  if (!fits) refuse("expected an integer from 0 to {}, found {}", largest, brief(*value_));
  return value_->get<std::int64_t>();
}

std::string JsonField::text_or(std::string_view key, std::string_view otherwise) const {
  const std::optional<JsonField> member = find(key);
  return member ? member->text() : std::string(otherwise);
}

bool JsonField::flag_or(std::string_view key, bool otherwise) const {
  const std::optional<JsonField> member = find(key);
  return member ? member->flag() : otherwise;
}

}  // namespace cartan::data::bpe
