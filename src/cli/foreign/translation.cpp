#include "cli/foreign/translation.hpp"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <utility>

#include "cartan/core/text.hpp"
#include "cli/option.hpp"

namespace cartan::cli::foreign {
namespace {

constexpr double kLargestWhole = 0x1p53;

bool is_whole(double value) { return std::abs(value) <= kLargestWhole && value == std::floor(value); }

}  // namespace

void Translation::take(std::string foreign, std::string value, std::string key, std::string text) {
  settings.push_back({std::move(foreign), std::move(value), std::move(key), std::move(text)});
}

void Translation::take_default(std::string key, std::string text) {
  settings.push_back({{}, {}, std::move(key), std::move(text)});
}

std::string Translation::source_of(const Setting& setting) const {
  return setting.foreign.empty() ? fmt::format("{}: default of {}", path, format)
                                 : fmt::format("{}: {}", path, setting.foreign);
}

std::string value_text(const Json& value) {
  if (const auto text = scalar_text(value)) return printable(*text);
  return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::optional<std::string> scalar_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_number_float()) {
    const double number = value.get<double>();
    return is_whole(number) ? fmt::format("{:.0f}", number) : fmt::format("{}", number);
  }
  if (value.is_number()) return value.dump();
  return std::nullopt;
}

std::optional<Index> whole_number(const Json& value) {
  Json number = value;
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    number = Json::parse(text, nullptr, false);
    if (number.is_discarded()) return std::nullopt;
  }
  if (!number.is_number()) return std::nullopt;
  const double real = number.get<double>();
  if (!is_whole(real) || real < 0) return std::nullopt;
  return static_cast<Index>(real);
}

const Json* Fields::find(const std::string& name) {
  const bool is_first = known_.insert(name).second;
  if (object_ == nullptr) return nullptr;
  const auto found = object_->find(name);
  if (found == object_->end()) return nullptr;
  if (!is_auto(name) && !found->is_null()) return &*found;
  if (is_first) ignore(name, found->is_null() ? "as if it were not there" : "left to cartan");
  return nullptr;
}

bool Fields::is_auto(const std::string& name) const {
  return object_ != nullptr && object_->value(name, Json()) == "auto";
}

Fields Fields::object(const std::string& name) {
  const Json* value = find(name);
  if (value != nullptr && !value->is_object()) {
    refuse(name, "expected an object with keys");
    value = nullptr;
  }
  return {value, full(name), *to_};
}

std::optional<Index> Fields::whole(const std::string& name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const auto number = whole_number(*value);
  if (!number) refuse(name, "expected a whole number, at least 0");
  return number;
}

std::optional<double> Fields::number(const std::string& name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  // YAML 1.1 and Python write 1e-4 where others read a text.
  const Json number =
      value->is_string() ? Json::parse(value->get_ref<const std::string&>(), nullptr, false) : *value;
  if (number.is_number() && std::isfinite(number.get<double>())) return number.get<double>();
  refuse(name, "expected a number");
  return std::nullopt;
}

std::optional<bool> Fields::flag(const std::string& name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  refuse(name, "expected true or false");
  return std::nullopt;
}

std::optional<std::string> Fields::text(const std::string& name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  refuse(name, "expected a text");
  return std::nullopt;
}

std::string Fields::full(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

std::string Fields::said(const std::string& name) const {
  const bool is_there = object_ != nullptr && object_->contains(name);
  return is_there ? value_text((*object_)[name]) : std::string();
}

void Fields::take(const std::string& name, std::string key, std::string text) {
  done_.insert(name);
  to_->take(full(name), said(name), std::move(key), std::move(text));
}

void Fields::confirm(const std::string& name, std::string how) { take(name, {}, std::move(how)); }

void Fields::ignore(const std::string& name, std::string why) {
  known_.insert(name);
  done_.insert(name);
  to_->unused.push_back({full(name), said(name), std::move(why)});
}

void Fields::refuse(const std::string& name, std::string_view advice) {
  known_.insert(name);
  done_.insert(name);
  const std::string value = said(name);
  to_->refused.push_back(fmt::format("{}: {}{}: {}", to_->path, printable(full(name), 200),
                                     value.empty() ? "" : " = " + value, advice));
}

bool Fields::take_if_said(const std::string& name, const std::string& key) {
  const Json* value = find(name);
  if (value == nullptr) return false;
  if (const auto text = scalar_text(*value))
    take(name, key, *text);
  else
    refuse(name, fmt::format("expected a single value for {}", key));
  return true;
}

void Fields::take_or(const std::string& name, const std::string& key, std::string by_default) {
  if (!take_if_said(name, key) && !is_auto(name)) to_->take_default(key, std::move(by_default));
}

void Fields::apply(std::span<const SameAs> table) {
  for (const SameAs& row : table) take_if_said(row.name, row.key);
}

void Fields::apply(std::span<const Tuning> table) {
  for (const Tuning& row : table)
    if (find(row.name) != nullptr) ignore(row.name, row.why);
}

void Fields::apply(std::span<const Fixed> table) {
  for (const Fixed& row : table) {
    const Json* value = find(row.name);
    if (value == nullptr) continue;
    if (*value == row.value)
      confirm(row.name, "as cartan computes");
    else
      refuse(row.name, row.advice);
  }
}

void Fields::apply_prefixes(std::span<const Tuning> table) {
  if (object_ == nullptr) return;
  for (const auto& [name, value] : object_->items())
    for (const Tuning& row : table)
      if (!known_.contains(name) && name.starts_with(row.name)) ignore(name, row.why);
}

void Fields::finish() {
  if (object_ == nullptr) return;
  const std::vector<std::string> names(known_.begin(), known_.end());
  for (const auto& [name, value] : object_->items()) {
    if (known_.contains(name)) continue;
    const auto near = nearest(std::string_view(name).substr(0, 64), names);
    to_->unknown.push_back({full(name), value_text(value),
                            near ? fmt::format("did you mean {}?", *near) : std::string("not known here")});
  }
}

void refuse_contradictions(Translation& translation) {
  std::map<std::string, const Setting*> first;
  for (const Setting& setting : translation.settings) {
    if (setting.foreign.empty() || setting.key.empty()) continue;
    const Setting& other = *first.try_emplace(setting.key, &setting).first->second;
    if (other.text != setting.text)
      translation.refused.push_back(fmt::format("{}: {} = {} and {} = {} both mean {}: remove one of them",
                                                translation.path, other.foreign, other.value, setting.foreign,
                                                setting.value, setting.key));
  }
}

std::vector<std::string> report_lines(const Translation& translation) {
  std::vector<std::string> lines{fmt::format("{}: read as a configuration of {}",
                                             printable(translation.path, 4096), translation.format)};
  const auto said = [](const std::string& foreign, const std::string& value) {
    return value.empty() ? printable(foreign, 200) : fmt::format("{} = {}", printable(foreign, 200), value);
  };
  const auto remarks = [&](const char* title, const std::vector<Remark>& list) {
    if (!list.empty()) lines.push_back(title);
    for (const Remark& remark : list)
      lines.push_back(fmt::format("  {:<46}  {}", said(remark.foreign, remark.value), remark.why));
  };
  const auto settings = [&](const std::string& title, bool are_defaults) {
    bool is_first = true;
    for (const Setting& setting : translation.settings) {
      if (setting.foreign.empty() != are_defaults) continue;
      if (std::exchange(is_first, false)) lines.push_back(title);
      const std::string ours = setting.key.empty()
                                   ? setting.text
                                   : fmt::format("{} = {}", setting.key, printable(setting.text, 200));
      lines.push_back(are_defaults
                          ? "  " + ours
                          : fmt::format("  {:<46} -> {}", said(setting.foreign, setting.value), ours));
    }
  };
  settings("taken:", false);
  settings(fmt::format("not said, defaults of {}:", translation.format), true);
  remarks("otherwise there:", translation.differing);
  remarks("without meaning here:", translation.unused);
  remarks("unknown:", translation.unknown);
  return lines;
}

}  // namespace cartan::cli::foreign
