// Configuration problems, corpora lists, and the validation split.
#include "cartan/data/config.hpp"

#include "data_test_support.hpp"

namespace cartan::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Words = std::vector<std::string>;

std::vector<std::string> problems_of(const DataConfig& config) {
  Problems problems;
  check(config, problems);
  return problems.lines();
}

TEST(DataConfig, DefaultsNeedOnlyTheTrainingData) {
  DataConfig config;
  EXPECT_THAT(problems_of(config), ElementsAre(HasSubstr("data.train is empty")));
  config.train = {"a"};
  EXPECT_TRUE(problems_of(config).empty());
  EXPECT_EQ(config.seq, 256);
  EXPECT_EQ(config.seed, 1234u);
}

TEST(DataConfig, AllProblemsAreFound) {
  DataConfig config;
  config.train = {"0.7", "a", "b", "c"};
  config.valid = {"v"};
  config.valid_fraction = 1;
  config.tokenizer = "words";
  config.seq = 0;
  config.json_key = "";
  EXPECT_THAT(problems_of(config), ElementsAre(AllOf(HasSubstr("data.train"), HasSubstr("\"b\"")),
                                               HasSubstr("data.valid-fraction = 1 is out"),
                                               HasSubstr("both given"), HasSubstr("data.seq = 0"),
                                               HasSubstr("data.tokenizer"), HasSubstr("data.json-key")));
}

TEST(ParseCorpora, ReadsPrefixesAndPairs) {
  EXPECT_THAT(parse_corpora(Words{}, "k"), ElementsAre());
  EXPECT_THAT(parse_corpora(Words{"a", "b/c"}, "k"), ElementsAre(CorpusSpec{"a", 0}, CorpusSpec{"b/c", 0}));
  const auto pairs = ElementsAre(CorpusSpec{"a", 700000000}, CorpusSpec{"b", 300000000});
  EXPECT_THAT(parse_corpora(Words{"0.7", "a", "0.3", "b"}, "k"), pairs);
  EXPECT_THAT(parse_corpora(Words{" 0.7 a  0.3 b "}, "k"), pairs);
}

TEST(ParseCorpora, RefusesWhatIsNeither) {
  const auto message = [](const Words& words) {
    return message_of<ConfigError>([&] { parse_corpora(words, "data.train"); });
  };
  EXPECT_THAT(message({"1", "a", "2"}), HasSubstr("no prefix follows the weight 2"));
  EXPECT_THAT(message({"1", "a", "b"}), HasSubstr("found \"b\" where a weight was expected"));
  EXPECT_THAT(message({"a", "2", "b"}), HasSubstr("the weight 2 comes after a prefix without one"));
  for (const std::string weight : {"0", "-1", "nan", "inf", "1e7", "1e-10"})
    EXPECT_THAT(message({weight, "a"}), HasSubstr("out of range")) << weight;
}

TEST(SplitDocument, CutsAtTheNearestBoundary) {
  const TemporaryFolder folder;
  write_documents(folder / "a", counting_documents({50, 0, 20, 10, 20}));
  const IndexedDataset dataset(folder / "a");
  const auto cut = [&](double fraction) {
    return dataset.document_tokens(split_document(dataset, fraction)).begin;
  };
  EXPECT_EQ(cut(0.2), 80);
  EXPECT_EQ(cut(0.28), 70);
  EXPECT_EQ(cut(0.01), 80);   // something is left for validation
  EXPECT_EQ(cut(0.999), 50);  // something is left for training
}

TEST(SplitDocument, RefusesASingleDocument) {
  const TemporaryFolder folder;
  write_documents(folder / "a", {{}, {1, 2, 3}, {}});
  const IndexedDataset dataset(folder / "a");
  EXPECT_THAT(message_of<ConfigError>([&] { split_document(dataset, 0.5); }),
              AllOf(HasSubstr("one document holds all tokens"), HasSubstr("give data.valid instead")));
}

TEST(OpenSources, HoldsOutTheLastDocumentsOfEachCorpus) {
  const TemporaryFolder folder;
  write_documents(folder / "a", counting_documents({60, 30, 10}));
  write_documents(folder / "b", counting_documents({45, 45}));
  DataConfig config;
  config.train = {"0.9", folder / "a", "0.1", folder / "b"};
  config.valid_fraction = 0.1;
  config.seq = 4;
  const DataSources sources = open_sources(config, 100);
  ASSERT_NE(sources.valid, nullptr);
  EXPECT_EQ(sources.train->corpora()[0].tokens, (IndexRange{0, 90}));
  EXPECT_EQ(sources.valid->corpora()[0].tokens, (IndexRange{90, 100}));
  EXPECT_EQ(sources.train->corpora()[1].tokens, (IndexRange{0, 45}));
  EXPECT_EQ(sources.valid->corpora()[1].tokens, (IndexRange{45, 90}));
  EXPECT_EQ(sources.train->corpora()[0].weight, 900000000u);
  EXPECT_EQ(sources.valid->samples(), 2 + 11);
  for (Index i = 0; i < 200; ++i) {
    const auto at = sources.train->locate(i);
    EXPECT_LE(at.first_token + 5, at.corpus == 0 ? 90 : 45);
  }
  for (Index i = 0; i < 50; ++i) {
    const auto at = sources.valid->locate(i);
    EXPECT_GE(at.first_token, at.corpus == 0 ? 90 : 45);
  }
}

TEST(OpenSources, TakesASeparateValidationSetOrNone) {
  const TemporaryFolder folder;
  write_documents(folder / "a", counting_documents({60}));
  write_documents(folder / "v", counting_documents({9}));
  DataConfig config;
  config.train = {folder / "a"};
  config.seq = 8;
  EXPECT_EQ(open_sources(config, 100).valid, nullptr);
  config.valid = {folder / "v"};
  EXPECT_EQ(open_sources(config, 100).valid->samples(), 1);
  config.valid = {folder / "missing"};
  EXPECT_THROW(open_sources(config, 100), MissingError);
}

}  // namespace
}  // namespace cartan::data
