#define PCRE2_CODE_UNIT_WIDTH 8
#include "regex.hpp"

#include <pcre2.h>

#include <array>
#include <utility>

#include "cartan/core/error.hpp"

namespace cartan::data::bpe {
namespace {

// Members of a class, for inside the brackets.
constexpr std::string_view kSpace =
    "\\x{9}-\\x{d} \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr std::string_view kWord = "\\p{L}\\p{M}\\p{Nd}\\p{Pc}";
constexpr std::string_view kHex = "0-9A-Fa-f";

struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct FreeStack {
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};
/// What one thread needs to match; one group, because only the whole match is asked for.
struct Matcher {
  std::unique_ptr<pcre2_match_data, FreeMatch> data{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, FreeContext> context{pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, FreeStack> stack{pcre2_jit_stack_create(32 << 10, 16 << 20, nullptr)};
  Matcher() {
    if (!data || !context) throw std::bad_alloc();
    // There is no stack where the library was built without its compiler.
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};
Matcher& matcher() {
  thread_local Matcher one;
  return one;
}

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

pcre2_code* compile(const std::string& pattern, int& error, std::size_t& offset) {
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 100);
  // A line ends at every \n for ^ and $, as in Ruby's syntax.
  return pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                       PCRE2_UTF | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get());
}

bool compiles(const std::string& pattern) {
  int error = 0;
  std::size_t offset = 0;
  pcre2_code* code = compile(pattern, error, offset);
  pcre2_code_free(code);
  return code != nullptr;
}

/// One pass over the pattern, character by character.
class Translator {
 public:
  explicit Translator(std::string_view in) : in_(in) {}

  std::string run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        escape(false);
      } else if (c == '[') {
        bracket();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        repeat();
      } else {
        out_ += c;
        ++at_;
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw DataError("regular expression \"{}\": {} at offset {} is not supported", in_, what, at_);
  }
  bool next_is(std::string_view text) const { return in_.substr(at_).starts_with(text); }

  void put_class(std::string_view members, bool negated, bool inside) {
    if (inside && negated) refuse("a negated class inside brackets");
    if (inside)
      out_ += members;
    else
      out_.append(negated ? "[^" : "[").append(members) += ']';
  }

  void escape(bool inside) {
    if (at_ + 1 == in_.size()) refuse("a backslash");
    const char c = in_[at_ + 1];
    const auto done = [&](std::size_t length = 2) { at_ += length; };
    switch (c) {
      case 's':
        put_class(kSpace, false, inside);
        return done();
      case 'S':
        if (inside)
          out_ += "\\P{White_Space}";
        else
          put_class(kSpace, true, false);
        return done();
      case 'd':
        out_ += "\\p{Nd}";
        return done();
      case 'D':
        out_ += "\\P{Nd}";
        return done();
      case 'w':
        put_class(kWord, false, inside);
        return done();
      case 'W':
        put_class(kWord, true, inside);
        return done();
      case 'h':
        put_class(kHex, false, inside);
        return done();
      case 'H':
        put_class(kHex, true, inside);
        return done();
      case 'v':
        out_ += "\\x{b}";
        return done();
      case 'b':
        if (inside)
          out_ += "\\x{8}";
        else
          out_.append("(?:(?<=[")
              .append(kWord)
              .append("])(?![")
              .append(kWord)
              .append("])|(?<![")
              .append(kWord)
              .append("])(?=[")
              .append(kWord)
              .append("]))");
        return done();
      case 'B':
        if (inside) refuse("\\B inside brackets");
        out_.append("(?:(?<=[")
            .append(kWord)
            .append("])(?=[")
            .append(kWord)
            .append("])|(?<![")
            .append(kWord)
            .append("])(?![")
            .append(kWord)
            .append("]))");
        return done();
      case 'p':
      case 'P':
        return property(c == 'P');
      case 'u': {
        const std::string_view hex = in_.substr(at_ + 2, 4);
        if (hex.size() < 4 || hex.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
          refuse("\\u without four digits");
        out_.append("\\x{").append(hex) += '}';
        return done(6);
      }
      case 'x': {
        out_ += "\\x";
        return done();
      }
      default:
        break;
    }
    const bool is_plain = static_cast<unsigned char>(c) < 0x80 &&
                          (std::string_view("nrtfae0123456789").find(c) != std::string_view::npos);
    const bool is_anchor = std::string_view("AzZRX").find(c) != std::string_view::npos;
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if ((is_letter && !is_plain && !is_anchor) || (is_anchor && inside)) refuse(in_.substr(at_, 2));
    out_ += '\\';
    // The rest of a character beyond ASCII is copied by the caller.
    out_ += c;
    done();
  }

  /// \p{Name}: a script's name means the script itself, not PCRE2's wider set of script extensions.
  void property(bool negated) {
    const std::size_t close = in_.find('}', at_);
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || close == std::string_view::npos)
      refuse("a property without braces");
    std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    const std::string as_script = "\\p{sc:" + std::string(name) + "}";
    const std::string prefix = name.size() > 2 && compiles(as_script) ? "sc:" : "";
    out_.append(negated ? "\\P{" : "\\p{").append(prefix).append(name) += '}';
    at_ = close + 1;
  }

  void bracket() {
    out_ += '[';
    ++at_;
    if (next_is("^")) {
      out_ += '^';
      ++at_;
    }
    bool is_first = true;
    while (true) {
      if (at_ == in_.size()) refuse("a class without its closing bracket");
      const char c = in_[at_];
      if (c == ']' && !is_first) break;
      if (c == '[') refuse("a class inside brackets");
      if (next_is("&&")) refuse("an intersection (&&)");
      if (c == '\\') {
        escape(true);
      } else {
        out_ += c;
        ++at_;
      }
      is_first = false;
    }
    out_ += ']';
    ++at_;
  }

  void group() {
    out_ += '(';
    ++at_;
    if (next_is("*")) refuse("(*");
    if (!next_is("?")) return;
    out_ += '?';
    ++at_;
    for (const std::string_view kind : {":", "=", "!", ">", "<=", "<!"})
      if (next_is(kind)) {
        out_ += kind;
        at_ += kind.size();
        return;
      }
    const std::size_t begin = at_;
    while (at_ < in_.size() && in_[at_] != ':' && in_[at_] != ')') {
      const char c = in_[at_];
      if (c != 'i' && c != 'm' && c != '-') refuse("this kind of group");
      out_ += c == 'm' ? 's' : c;  // Ruby's m lets the dot match \n
      ++at_;
    }
    if (at_ == in_.size()) refuse("a group without its end");
    // (?i) alone binds an alternation differently in Ruby; at the beginning of the pattern it is the same.
    if (in_[at_] == ')' && begin != 2) refuse("a flag for the rest of a group");
    out_ += in_[at_++];
  }

  void repeat() {
    const std::size_t close = in_.find('}', at_);
    const std::string_view body =
        close == std::string_view::npos ? std::string_view() : in_.substr(at_ + 1, close - at_ - 1);
    const bool is_count =
        !body.empty() && body != "," && body.find_first_not_of("0123456789,") == std::string_view::npos;
    if (!is_count) {
      out_ += "\\{";
      ++at_;
      return;
    }
    out_.append(body.front() == ',' ? "{0" : "{").append(body) += '}';
    at_ = close + 1;
    if (next_is("+")) refuse("a + after a counted repetition");
  }

  std::string_view in_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string translate_pattern(std::string_view pattern) { return Translator(pattern).run(); }

void Regex::Free::operator()(void* code) const { pcre2_code_free(static_cast<pcre2_code*>(code)); }

Regex::Regex(std::string_view pattern) : source_(pattern) {
  int error = 0;
  std::size_t offset = 0;
  pcre2_code* code = compile(translate_pattern(pattern), error, offset);
  if (code == nullptr) throw DataError("regular expression \"{}\": {}", pattern, error_text(error));
  code_.reset(code);
  is_compiled_ = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
}

std::optional<Match> Regex::find(std::string_view text, std::size_t from) const {
  const Matcher& m = matcher();
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int found = is_compiled_ ? pcre2_jit_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                                                   m.data.get(), m.context.get())
                                 : pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                                               m.data.get(), m.context.get());
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0)
    throw DataError("regular expression \"{}\" fails on a text of {} bytes: {}", source_, text.size(),
                    error_text(found));
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(m.data.get());
  return Match{span[0], span[1]};
}

}  // namespace cartan::data::bpe
