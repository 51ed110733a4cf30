// What became of a configuration of another trainer: keys that were taken, with ours; those without meaning
// here; those that are not known; and what cannot be done and is refused. Fields is how a translator reads
// one object of the file: whatever it does not ask for is listed as unknown, so nothing is lost silently.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cartan/core/json.hpp"
#include "cartan/core/types.hpp"

namespace cartan::cli::foreign {

/// A key of ours and its value. `foreign` is where the file says so, "zero_optimization.stage"; empty: the
/// default of the format. `value` is empty where several keys together say it. Without a key of ours: what
/// the file says is so anyway, and `text` says how.
struct Setting {
  std::string foreign, value;
  std::string key, text;
};
/// A key of the file that sets nothing, and why.
struct Remark {
  std::string foreign, value, why;
};

/// The batch as DeepSpeed and Megatron-LM describe it: global = micro * accumulation * replicas of the model.
/// What is not said is nothing; batch.hpp completes it once the replicas are known.
struct BatchTerms {
  struct Term {
    std::string name;  ///< in the file, for messages
    std::optional<Index> value = {};
  };
  Term global, micro, accumulation;

  bool has_all() const { return global.value && micro.value && accumulation.value; }
};

struct Translation {
  std::string path;    ///< as the user gave it
  std::string format;  ///< "DeepSpeed"
  std::vector<Setting> settings;
  std::vector<Remark> unused, unknown;
  std::vector<Remark> differing;     ///< what goes without saying there and is otherwise here
  std::vector<std::string> refused;  ///< whole lines: key, value, why, what to do
  BatchTerms batch;

  void take(std::string foreign, std::string value, std::string key, std::string text);
  void take_default(std::string key, std::string text);
  /// The source of a setting, for messages and for the comments of an INI.
  std::string source_of(const Setting& setting) const;
};

/// For people: a short text of any value.
std::string value_text(const Json& value);
/// A number, truth value or text as our options read it; whole numbers such as 5e8 without an exponent.
/// Nothing for lists and objects.
std::optional<std::string> scalar_text(const Json& value);
/// A whole number from 0 to 2^53, also where it is written as 5e8 or in quotes.
std::optional<Index> whole_number(const Json& value);

/// A foreign key and the key of ours that means the same.
struct SameAs {
  const char* name;
  const char* key;
};
/// A foreign key that only tunes another implementation, and why it is not needed here.
struct Tuning {
  const char* name;
  const char* why;
};
/// A foreign key that must have one value, because this is how cartan computes, and what to do.
struct Fixed {
  const char* name;
  Json value;
  const char* advice;
};

class Fields {
 public:
  /// `object`: null for one that is not there. `path`: empty, or "zero_optimization".
  Fields(const Json* object, std::string path, Translation& to)
      : object_(object), path_(std::move(path)), to_(&to) {}

  bool exists() const { return object_ != nullptr; }
  /// The value of a key; null where it is not there, null or "auto", which are listed.
  const Json* find(const std::string& name);
  /// Whether the caller is to fill in the value: "auto".
  bool is_auto(const std::string& name) const;
  /// Of one that should be there as an object; others are refused.
  Fields object(const std::string& name);

  // Nothing where find() finds nothing; other types are refused.
  std::optional<Index> whole(const std::string& name);
  std::optional<double> number(const std::string& name);
  std::optional<bool> flag(const std::string& name);
  std::optional<std::string> text(const std::string& name);

  /// "zero_optimization.stage".
  std::string full(std::string_view name) const;

  // What to do with a key that was found.
  void take(const std::string& name, std::string key, std::string text);
  void confirm(const std::string& name, std::string how);
  void ignore(const std::string& name, std::string why);
  void refuse(const std::string& name, std::string_view advice);

  /// find() and take() as it is; false where there is nothing.
  bool take_if_said(const std::string& name, const std::string& key);
  /// The same; where the key is not there at all (or null), the format's default.
  void take_or(const std::string& name, const std::string& key, std::string by_default);
  void apply(std::span<const SameAs> table);
  void apply(std::span<const Tuning> table);
  void apply(std::span<const Fixed> table);

  /// Lists as tuning what nobody has asked for and begins so.
  void apply_prefixes(std::span<const Tuning> table);
  /// Whether a key has been taken, listed or refused.
  bool is_taken(const std::string& name) const { return done_.contains(name); }

  /// Lists what nobody asked for; once, at the end.
  void finish();

 private:
  std::string said(const std::string& name) const;

  const Json* object_;
  std::string path_;
  Translation* to_;
  std::set<std::string> known_, done_;
};

/// Adds to `refused` where two keys of the file give one of ours different values.
void refuse_contradictions(Translation& translation);

/// The lists as lines for people; each is left away where it is empty.
std::vector<std::string> report_lines(const Translation& translation);

}  // namespace cartan::cli::foreign
