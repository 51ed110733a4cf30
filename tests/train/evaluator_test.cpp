// Perplexity by windows and the choice among answers, against what transformers computes with the same
// models, on any number of ranks. Texts are bytes; the models have more tokens.
#include "cartan/train/evaluator.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "cartan/core/narrow.hpp"
#include "cartan/train/choices.hpp"
#include "cartan/train/perplexity.hpp"
#include "support/golden.hpp"
#include "support/mpi_session.hpp"
#include "support/test_device.hpp"

namespace cartan::train {
namespace {

using testing::find_golden;
using ::testing::HasSubstr;

constexpr std::string_view kText =
    "To be, or not to be: that is the question. Whether 't is nobler in the mind to suffer the slings and "
    "arrows of outrageous fortune, or to take arms against a sea of troubles, and by opposing end them. To "
    "die, to sleep, no more; caf\u00e9 \u2014 na\u00efve.\n";

std::vector<std::int32_t> bytes_of(std::string_view text) {
  std::vector<std::int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

/// A model on the ranks of the test, as replicas unless a mesh is given.
struct Loaded {
  explicit Loaded(const std::string& name, comm::MeshShape shape = {1, testing::session().world_size(), 1, 1})
      : mesh(testing::session(), shape, cartan::testing::test_device_kind()),
        model(load_model(*find_golden("models/" + name), DType::f32, *device, mesh)) {}
  EvaluationPlace place() { return {*device, mesh, mesh.world().size() > 1}; }

  std::unique_ptr<device::Device> device = cartan::testing::make_test_device(1);
  comm::Mesh mesh;
  LoadedModel model;
};

TEST(Windows, PredictEachTokenOnceFromAsMuchAsFits) {
  const auto check = [](Index tokens, Index length, Index stride, const std::vector<Window>& expected) {
    EXPECT_EQ(windows_of(tokens, length, stride), expected) << tokens << " " << length << " " << stride;
  };
  check(0, 4, 2, {});
  check(1, 4, 2, {{0, 1, 1}});
  check(4, 4, 2, {{0, 4, 1}});
  check(5, 4, 2, {{0, 4, 1}, {2, 5, 4}});
  check(9, 4, 3, {{0, 4, 1}, {3, 7, 4}, {6, 9, 7}});
  // Windows that do not overlap leave out their first tokens.
  check(9, 4, 4, {{0, 4, 1}, {4, 8, 5}, {8, 9, 9}});
  check(6, 4, 1, {{0, 4, 1}, {1, 5, 4}, {2, 6, 5}});
}

TEST(Words, AreRunsBetweenBlanks) {
  EXPECT_EQ(count_words(kText), 49);
  EXPECT_EQ(count_words(""), 0);
  EXPECT_EQ(count_words(" \n\t"), 0);
  EXPECT_EQ(count_words("a\r\nb  c"), 3);
}

/// transformers 5.24, its sliding-window loop, the mean over all targets.
struct Expected {
  std::string model;
  Index length, stride;
  double loss;
  Index targets, windows;
};

class Perplexity : public ::testing::TestWithParam<Expected> {};

TEST_P(Perplexity, IsThatOfTransformers) {
  const Expected& expected = GetParam();
  if (!find_golden("models/" + expected.model)) GTEST_SKIP() << "no " << expected.model << " here";
  Loaded on(expected.model);
  bool is_first = true;
  const NextText next = [&](std::vector<std::int32_t>& ids) {
    ids = bytes_of(kText);
    return std::exchange(is_first, false);
  };
  const WindowedLoss found = evaluate_texts(on.model, next, {expected.length, expected.stride}, on.place());
  EXPECT_EQ(found.loss.targets, expected.targets);
  EXPECT_EQ(found.windows, expected.windows);
  EXPECT_EQ(found.tokens, 245);
  EXPECT_NEAR(found.loss.mean(), expected.loss, 2e-6);
}

INSTANTIATE_TEST_SUITE_P(
    Models, Perplexity,
    ::testing::Values(Expected{"llama-tied-tiny", 48, 20, 6.647486288039411, 244, 11},
                      Expected{"llama-tied-tiny", 64, 64, 6.7448910064222405, 241, 4},
                      Expected{"llama-tied-tiny", 64, 1, 6.619062361170034, 244, 182},
                      Expected{"qwen2-tiny", 48, 20, 6.383496790635781, 244, 11},
                      Expected{"qwen2-tiny", 33, 32, 6.337023735046387, 244, 8},
                      // One window, and a stride that never comes to be.
                      Expected{"qwen2-tiny", 512, 100, 6.329164981842041, 244, 1},
                      // Windows of 64 turn by the long factors, what is left of the text by the short ones.
                      Expected{"phi3-longrope-tiny", 64, 64, 6.341439995033612, 241, 4},
                      Expected{"phi3-longrope-tiny", 48, 20, 6.375451138762177, 244, 11}),
    [](const auto& test) {
      std::string name = fmt::format("{}_{}_{}", test.param.model, test.param.length, test.param.stride);
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

TEST(Evaluation, RanksDoNotChangeABitOfLossesAndScores) {
  const auto sums = [](Loaded& on) {
    std::vector<TargetSequence> sequences;
    const std::vector<std::int32_t> ids = bytes_of(kText);
    for (Index length = 1; length < 40; length += 2)
      sequences.push_back(TargetSequence::of(std::span(ids).subspan(0, narrow<std::size_t>(length)), 1));
    std::vector<std::uint64_t> bits;
    for (const ExactSum& sum : evaluate_sequences(on.model, sequences, on.place()))
      bits.push_back(std::bit_cast<std::uint64_t>(sum.value()));
    return bits;
  };
  Loaded shared("qwen2-tiny");
  const auto found = sums(shared);
  comm::Mesh alone = comm::Mesh::alone();
  const LoadedModel whole = load_model(*find_golden("models/qwen2-tiny"), DType::f32, *shared.device, alone);
  std::vector<std::uint64_t> expected;
  const std::vector<std::int32_t> ids = bytes_of(kText);
  for (Index length = 1; length < 40; length += 2) {
    const TargetSequence one = TargetSequence::of(std::span(ids).subspan(0, narrow<std::size_t>(length)), 1);
    const auto sum = evaluate_sequences(whole, {&one, 1}, {*shared.device, alone});
    expected.push_back(std::bit_cast<std::uint64_t>(sum[0].value()));
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(std::bit_cast<double>(found[0]), 0) << "nothing is predicted from nothing";
}

/// The questions of this test, by line.
constexpr std::array<std::string_view, 4> kQuestions{
    R"({"id":"a","context":"Question: what is the capital of France?\nAnswer:","choices":[" Paris"," London"," the small town of Rome"," \u00c9vora"],"label":0})",
    R"({"id":"b","context":"Two and two are ","choices":["four","five","three hundred"],"label":1})",
    R"({"context":"","choices":["Yes","No"],"label":1})",
    R"({"context":"The weather today is","choices":[" good"," bad"]})"};

std::vector<Question> questions() {
  const auto tokenizer = data::make_tokenizer("byte");
  std::vector<Question> all;
  for (std::size_t i = 0; i < kQuestions.size(); ++i)
    all.push_back(parse_question(kQuestions[i], fmt::format("q.jsonl:{}", i + 1), *tokenizer, 512));
  return all;
}

TEST(Choices, HaveTheLogLikelihoodsOfTransformers) {
  Loaded on("qwen2-tiny");
  const std::vector<Question> asked = questions();
  const std::vector<Answer> found = answer(on.model, asked, 0, on.place());
  const std::vector<std::vector<double>> expected{
      {-37.5738422297074, -45.17212449467631, -143.3300052221974, -44.41633698858768},
      {-31.820031219385633, -30.061231223471463, -83.67147217997868},
      {-19.83274240029701, -13.023539623767427},
      {-33.30116575618604, -27.579882911774}};
  const std::vector<std::vector<Index>> tokens{{6, 7, 23, 7}, {5, 5, 14}, {3, 2}, {5, 4}};
  // By the sum, per token, per byte and per character.
  const std::vector<std::array<Index, 4>> predicted{{0, 2, 2, 2}, {1, 2, 2, 2}, {1, 1, 1, 1}, {1, 0, 0, 0}};
  Accuracy accuracy;
  for (std::size_t q = 0; q < found.size(); ++q) {
    for (std::size_t c = 0; c < expected[q].size(); ++c) {
      EXPECT_NEAR(found[q].scores[c].log_likelihood, expected[q][c], 2e-4) << q << " " << c;
      EXPECT_EQ(found[q].scores[c].tokens, tokens[q][c]);
    }
    const Prediction& p = found[q].predicted;
    EXPECT_EQ((std::array<Index, 4>{p.sum, p.per_token, *p.bytes, *p.characters}), predicted[q]) << q;
    accuracy.add(asked[q], found[q]);
  }
  EXPECT_EQ(*found[0].scores[3].bytes, 6);
  EXPECT_EQ(*found[0].scores[3].characters, 5);
  const Json summary = accuracy.summary();
  EXPECT_EQ(summary["questions"], 4);
  EXPECT_EQ(summary["labels"], 3);
  EXPECT_EQ(summary["acc"], 1.0);
  EXPECT_EQ(summary["acc_norm"], 1.0 / 3);
  EXPECT_EQ(summary["acc_tokens"], 1.0 / 3);
  EXPECT_EQ(to_json(asked[0], found[0])["id"], "a");
}

TEST(Choices, OfIdsNeedNoText) {
  Loaded on("qwen2-tiny");
  const auto tokenizer = data::make_tokenizer("byte");
  const Question question =
      parse_question(R"({"context_ids":[5,17,400,256],"choices":[[1,2],[300],[511,0,7]],"label":2})", "q:1",
                     *tokenizer, 512);
  const Answer found = answer(on.model, {&question, 1}, 0, on.place()).front();
  const std::array expected{-14.120535549304035, -7.553264173466505, -18.259364823107486};
  for (std::size_t c = 0; c < expected.size(); ++c)
    EXPECT_NEAR(found.scores[c].log_likelihood, expected[c], 1e-4);
  EXPECT_FALSE(found.predicted.bytes);
  EXPECT_EQ(found.predicted.sum, 1);
  EXPECT_EQ(found.predicted.per_token, 2);
  Accuracy accuracy;
  accuracy.add(question, found);
  EXPECT_FALSE(accuracy.summary().contains("acc_norm")) << "ids have no characters";
  EXPECT_TRUE(to_json(question, found)["bytes"][0].is_null());
}

TEST(Choices, LoseTheirFirstTokensWhereTheyAreTooLong) {
  Loaded on("qwen2-tiny");
  const std::vector<Question> asked = questions();
  const Answer cut = answer(on.model, std::span(asked).first(1), 9, on.place()).front();
  EXPECT_TRUE(cut.is_cut);
  EXPECT_EQ(cut.scores[0].tokens, 6);
  EXPECT_EQ(cut.scores[2].tokens, 9) << "of 23 nine can be predicted";
  // As if the context had begun later.
  const auto tokenizer = data::make_tokenizer("byte");
  const Question later =
      parse_question(R"({"context":"wer:","choices":[" Paris","-"]})", "q:1", *tokenizer, 512);
  const Answer short_one = answer(on.model, {&later, 1}, 9, on.place()).front();
  EXPECT_FALSE(short_one.is_cut);
  EXPECT_NEAR(short_one.scores[0].log_likelihood, cut.scores[0].log_likelihood, 1e-5);
}

TEST(Choices, TrailingSpaceOfTheContextBelongsToTheChoice) {
  const auto tokenizer = data::make_tokenizer("byte");
  const Choice plain = encode_choice(*tokenizer, "ab \u3000\n", "cd");
  EXPECT_EQ(plain.context, bytes_of("ab"));
  EXPECT_EQ(plain.ids, bytes_of(" \u3000\ncd"));
  EXPECT_EQ(*plain.bytes, 2) << "of the choice alone";
  const Choice blank = encode_choice(*tokenizer, "  ", "x");
  EXPECT_EQ(blank.context, std::vector<std::int32_t>{256});
  EXPECT_EQ(blank.ids, bytes_of("  x"));
}

TEST(Choices, SayWhatIsWrongWithALine) {
  const auto tokenizer = data::make_tokenizer("byte");
  const auto message = [&](std::string_view line) -> std::string {
    try {
      parse_question(line, "q.jsonl:7", *tokenizer, 400);
    } catch (const DataError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message("{"), HasSubstr("q.jsonl:7"));
  EXPECT_THAT(message("[]"), HasSubstr("q.jsonl:7: expected a JSON object"));
  EXPECT_THAT(message(R"({"choices":["a","b"]})"), HasSubstr("found neither"));
  EXPECT_THAT(message(R"({"context":"a","context_ids":[1],"choices":["a","b"]})"), HasSubstr("found both"));
  EXPECT_THAT(message(R"({"context":3,"choices":["a","b"]})"), HasSubstr("context is number"));
  EXPECT_THAT(message(R"({"context":"a","choices":["a"]})"), HasSubstr("two or more"));
  EXPECT_THAT(message(R"({"context":"a","choices":["a",""]})"), HasSubstr("choices[1]: an empty text"));
  EXPECT_THAT(message(R"({"context":"a","choices":["a",[]]})"), HasSubstr("choices[1] is empty"));
  EXPECT_THAT(message(R"({"context":"a","choices":["a",[1,2.5]]})"), HasSubstr("choices[1] is [1,2.5]"));
  EXPECT_THAT(message(R"({"context":"a","choices":["a",[400]]})"),
              HasSubstr("choices[1]: token 400 at position 0 is outside the model's vocabulary of 400"));
  EXPECT_THAT(message(R"({"context_ids":[-1],"choices":["a","b"]})"), HasSubstr("context_ids: token -1"));
  EXPECT_THAT(message(R"({"context":"a","choices":["a","b"],"label":2})"), HasSubstr("label is 2"));
  EXPECT_THAT(message(R"({"context":"a","choices":["a","b"],"label":"a"})"), HasSubstr("label is"));
}

}  // namespace
}  // namespace cartan::train
