#include "cartan/infer/generator.hpp"

#include <algorithm>
#include <list>

#include "cartan/core/error.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/core/random.hpp"
#include "infer/decoder.hpp"

namespace cartan::infer {
namespace {

using device::Matrix;
using device::MemoryKind;

/// Of a next token: what it depends on beside the logits, and its id.
struct Choice {
  double uniform;
  std::int32_t token;
};

/// A text that is being written.
struct Text {
  const Request& request;
  std::size_t number;  ///< of the request
  Index slot;
  RandomStream random;
  std::vector<std::int32_t> ids{};  ///< the prompt and what came after
  Index cached = 0;                 ///< of these, whose keys and values are kept
  Index table = RopeTables::kNone;
  std::vector<bool> seen{};  ///< by id: whether the text has it; empty: nobody asks
  Index distinct = 0;        ///< ids that it has

  Index prompt_length() const { return std::ssize(request.prompt); }
  Index new_tokens() const { return std::ssize(ids) - prompt_length(); }
  Index length_at_most() const { return prompt_length() + request.options.max_new_tokens; }
  std::span<const std::int32_t> tokens(Index begin, Index count) const {
    return std::span(ids).subspan(narrow<std::size_t>(begin), narrow<std::size_t>(count));
  }
};

}  // namespace

struct Generator::State {
  State(const model::ModelConfig& config_, shard::FlatState& parameters, const GeneratorOptions& options_,
        device::Device& device_, comm::Mesh& mesh_)
      : config(config_),
        options(options_),
        device(device_),
        mesh(mesh_),
        compute(parameters.compute_dtype()),
        decoder(config_, parameters, {options_.max_length, options_.texts, options_.prefill_rows}, device_,
                mesh_),
        slot_is_taken(narrow<std::size_t>(options_.texts), false) {
    choice_memory = device.allocate(sizeof(Choice), MemoryKind::activations, "next token");
    choice = choice_memory.as<Choice>();
  }

  void check(const Request& request) const {
    check_prompt(request, config.vocab);
    const auto length = std::ssize(request.prompt);
    if (length + request.options.max_new_tokens > options.max_length)
      throw ConfigError("{}: prompt and new tokens are {} + {}, more than the {} that there is room for",
                        request.name, length, request.options.max_new_tokens, options.max_length);
  }

  Text start(const Request& request, std::size_t number) {
    const auto free = std::find(slot_is_taken.begin(), slot_is_taken.end(), false);
    *free = true;
    Text text{request, number, free - slot_is_taken.begin(), {request.options.seed, "sampling"}};
    if (request.options.repetition_penalty != 1 && decoder.has_head())
      text.seen.resize(narrow<std::size_t>(config.vocab), false);
    append(text, request.prompt);
    return text;
  }
  /// Nothing is left of earlier calls, which may have failed.
  void free_all() {
    decoder.tables().leave_all();
    std::fill(slot_is_taken.begin(), slot_is_taken.end(), false);
  }
  void end(const Text& text) {
    decoder.tables().leave(text.table);
    slot_is_taken[narrow<std::size_t>(text.slot)] = false;
  }

  /// The distinct ids of a slot's text, in the device's memory.
  std::int32_t* seen_ids(Index slot) {
    const Index most = std::min(config.vocab, options.max_length);
    if (seen_memory.data() == nullptr)
      seen_memory = device.allocate(narrow<std::size_t>(options.texts * most) * sizeof(std::int32_t),
                                    MemoryKind::activations, "tokens that were used");
    return seen_memory.as<std::int32_t>() + slot * most;
  }
  void append(Text& text, std::span<const std::int32_t> ids) {
    text.ids.insert(text.ids.end(), ids.begin(), ids.end());
    if (text.seen.empty()) return;
    std::vector<std::int32_t> first_seen;
    for (const std::int32_t id : ids) {
      if (text.seen[narrow<std::size_t>(id)]) continue;
      text.seen[narrow<std::size_t>(id)] = true;
      first_seen.push_back(id);
    }
    if (first_seen.empty()) return;
    device.copy_in(seen_ids(text.slot) + text.distinct, first_seen.data(),
                   first_seen.size() * sizeof(std::int32_t), device.compute_stream());
    text.distinct += std::ssize(first_seen);
  }

  Piece piece(const Text& text, Index begin, Index count) const {
    return {text.slot, begin, text.length_at_most(), text.table, text.tokens(begin, count)};
  }
  /// All but the last of its tokens are run.
  void prefill(Text& text) {
    const Index length = std::ssize(text.ids);
    if (decoder.tables().turn(text.table, length)) text.cached = 0;  // what is kept turned otherwise
    while (text.cached < length - 1) {
      const Index count = std::min(decoder.options().rows, length - 1 - text.cached);
      decoder.prefill(piece(text, text.cached, count));
      text.cached += count;
    }
  }

  /// Next tokens, -1 where the logits allow none: rank 0 of the last stage's tp and cp has chosen for all.
  std::vector<std::int32_t> next_tokens(std::list<Text>& texts) {
    std::vector<Piece> pieces;
    for (Text& text : texts) {
      pieces.push_back(piece(text, text.cached, 1));
      ++text.cached;
    }
    const Matrix logits = decoder.decode(pieces);
    std::vector<std::int32_t> tokens;
    for (const Text& text : texts)
      tokens.push_back(decoder.has_head() ? choose(text, logits.row_block(std::ssize(tokens), 1)) : 0);
    const auto bytes = std::as_writable_bytes(std::span(tokens));
    for (const comm::Axis axis : {comm::Axis::tp, comm::Axis::cp, comm::Axis::pp}) {
      comm::Communicator& group = mesh.axis(axis);
      if (group.size() > 1) group.broadcast_host(bytes, axis == comm::Axis::pp ? group.size() - 1 : 0);
    }
    return tokens;
  }
  std::int32_t choose(const Text& text, const Matrix& logits) {
    device::Stream& stream = device.compute_stream();
    const GenerateOptions& rule = text.request.options;
    if (!text.seen.empty())
      device.ops().penalise_repeats({logits.data, logits.dtype, logits.cols},
                                    {seen_ids(text.slot), narrow<std::size_t>(text.distinct)},
                                    static_cast<float>(rule.repetition_penalty), stream);
    const double uniform = text.random.uniform(narrow<std::uint64_t>(std::ssize(text.ids)));
    device.copy_in(&choice->uniform, &uniform, sizeof uniform, stream);
    device.ops().sample(logits, {&choice->uniform, 1}, rule.sampling, {&choice->token, 1}, stream);
    std::int32_t token = 0;
    device.copy_out(&token, &choice->token, sizeof token, stream);
    return token;
  }

  model::ModelConfig config;
  GeneratorOptions options;
  device::Device& device;
  comm::Mesh& mesh;
  DType compute;
  Decoder decoder;
  device::Buffer choice_memory, seen_memory;
  Choice* choice = nullptr;
  std::vector<bool> slot_is_taken;
};

void check_prompt(const Request& request, Index vocab) {
  if (request.prompt.empty())
    throw DataError("{}: the prompt is empty: give at least one token", request.name);
  for (std::size_t i = 0; i < request.prompt.size(); ++i)
    if (request.prompt[i] < 0 || request.prompt[i] >= vocab)
      throw DataError("{}: token {} at position {} is outside the model's vocabulary of {}", request.name,
                      request.prompt[i], i, vocab);
}

Generator::Generator(const model::ModelConfig& config, shard::FlatState& state,
                     const GeneratorOptions& options, device::Device& device, comm::Mesh& mesh)
    : state_(std::make_unique<State>(config, state, options, device, mesh)) {}
Generator::~Generator() = default;

std::vector<Continuation> Generator::generate(std::span<const Request> requests, const OnToken& on_token,
                                              const OnEnd& on_end) {
  State& s = *state_;
  for (const Request& request : requests) s.check(request);
  s.free_all();
  std::vector<Continuation> results(requests.size());
  std::list<Text> texts;
  std::size_t next = 0;
  for (;;) {
    for (; next < requests.size() && std::ssize(texts) < s.options.texts; ++next)
      if (requests[next].options.max_new_tokens > 0)
        texts.push_back(s.start(requests[next], next));
      else if (on_end)
        on_end(next, results[next]);
    if (texts.empty()) return results;
    for (Text& text : texts) s.prefill(text);
    const std::vector<std::int32_t> tokens = s.next_tokens(texts);
    std::size_t i = 0;
    for (auto text = texts.begin(); text != texts.end(); ++i) {
      if (tokens[i] < 0)
        throw NumericError(
            "{}: position {}: the logits have a NaN, or the largest one is infinite: parameters are not "
            "finite, or numbers grow too large for {} (another precision.compute may help)",
            text->request.name, std::ssize(text->ids), name_of(s.compute));
      s.append(*text, {&tokens[i], 1});
      Continuation& result = results[text->number];
      result.tokens.push_back(tokens[i]);
      const auto& ends = text->request.options.end_tokens;
      const bool is_end = std::find(ends.begin(), ends.end(), tokens[i]) != ends.end();
      const bool goes_on = !on_token || on_token(text->number, tokens[i]);
      if (!is_end && goes_on && text->new_tokens() < text->request.options.max_new_tokens) {
        ++text;
        continue;
      }
      result.finish = is_end ? Finish::end : goes_on ? Finish::length : Finish::stop;
      s.end(*text);
      if (on_end) on_end(text->number, result);
      text = texts.erase(text);
    }
  }
}

}  // namespace cartan::infer
