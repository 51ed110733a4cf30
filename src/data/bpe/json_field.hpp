// Reading a tokenizer.json: each value knows its place, so that an error names the file and the path of the
// culprit, as "model.merges[17]". Keys that nobody knows are errors, never ignored.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cartan/core/error.hpp"

namespace cartan::data::bpe {

/// Keys are sorted: looking one up among a hundred thousand must be quick.
using SortedJson = nlohmann::json;

/// A value for messages: in short, and never deep.
std::string brief(const SortedJson& value);

/// A reference to a value that the document owns.
class JsonField {
 public:
  JsonField(const SortedJson& value, std::string_view file, std::string path = {})
      : value_(&value), file_(file), path_(std::move(path)) {}

  const SortedJson& value() const { return *value_; }
  bool is_null() const { return value_->is_null(); }
  bool is_object() const { return value_->is_object(); }
  bool is_array() const { return value_->is_array(); }
  bool is_string() const { return value_->is_string(); }

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) const {
    throw DataError("{}: {}: {}", file_, path_.empty() ? "the document" : path_,
                    fmt::format(text, std::forward<Args>(args)...));
  }

  /// Refuses members other than these.
  void allow(std::initializer_list<std::string_view> keys) const;
  /// The member, or nothing where it is not there or null.
  std::optional<JsonField> find(std::string_view key) const;
  JsonField at(std::string_view key) const;
  /// Elements of an array.
  std::size_t size() const;
  JsonField at(std::size_t index) const;

  const std::string& text() const;
  bool flag() const;
  /// An integer from 0 to `largest`.
  std::int64_t number(std::int64_t largest) const;
  std::string text_or(std::string_view key, std::string_view otherwise) const;
  bool flag_or(std::string_view key, bool otherwise) const;
  /// The member "type".
  const std::string& type() const { return at("type").text(); }

 private:
  void expect(bool holds, std::string_view kind) const;

  const SortedJson* value_;
  std::string_view file_;
  std::string path_;
};

}  // namespace cartan::data::bpe
