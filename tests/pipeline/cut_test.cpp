// No unit is lost or held twice, and the cut by FLOPs is the best there is.
#include "cartan/pipeline/cut.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <limits>

namespace cartan::pipeline {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr Index kLength = 128;

model::ModelConfig config_of(Index layers, Index vocab = 1000) {
  model::ModelConfig config;
  config.layers = layers;
  config.hidden = 64;
  config.ffn = 96;
  config.derive(vocab);
  return config;
}

/// Units of each part, after a check that they are all there in order.
std::vector<Index> sizes_of(const model::ModelConfig& config, int parts, const std::string& how) {
  std::vector<Index> sizes;
  Index begin = 0;
  for (const model::StageRange& range : cut_units(config, kLength, parts, how)) {
    EXPECT_EQ(range.first, begin);
    EXPECT_GT(range.end, range.first);
    sizes.push_back(range.end - range.first);
    begin = range.end;
  }
  EXPECT_EQ(begin, config.layers + 2);
  EXPECT_EQ(sizes.size(), static_cast<std::size_t>(parts));
  return sizes;
}

std::string refusal(Index layers, int parts, const std::string& how) {
  try {
    cut_units(config_of(layers), kLength, parts, how);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

/// FLOPs of the largest part.
double largest(const model::ModelConfig& config, const std::vector<Index>& sizes) {
  model::ModelConfig counted = config;
  counted.layers = 0;
  const double head = model::flops_per_token(counted, kLength).causal;
  counted.layers = 1;
  const double block = model::flops_per_token(counted, kLength).causal - head;
  double most = 0;
  Index unit = 0;
  for (const Index size : sizes) {
    double flops = 0;
    for (Index i = 0; i < size; ++i, ++unit)
      flops += unit == 0 ? 0 : unit == config.layers + 1 ? head : block;
    most = std::max(most, flops);
  }
  return most;
}

/// The best of all cuts, tried one by one.
double smallest_largest(const model::ModelConfig& config, int parts) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<Index> sizes;
  const std::function<void(Index)> extend = [&](Index left) {
    if (static_cast<int>(sizes.size()) + 1 == parts) {
      sizes.push_back(left);
      best = std::min(best, largest(config, sizes));
      sizes.pop_back();
      return;
    }
    const Index later = parts - static_cast<Index>(sizes.size()) - 1;
    for (Index size = 1; size + later <= left; ++size) {
      sizes.push_back(size);
      extend(left - size);
      sizes.pop_back();
    }
  };
  extend(config.layers + 2);
  return best;
}

TEST(Cut, ThirtyLayersOnFourStagesStayThirty) {
  // Unit counts include the embedding in the first part and the head in the last.
  EXPECT_THAT(sizes_of(config_of(30), 4, "layers"), ElementsAre(9, 8, 7, 8));
  for (const char* how : {"layers", "flops", "8,8,7,7"}) sizes_of(config_of(30), 4, how);
}

TEST(Cut, KeepsEveryUnitForEverySize) {
  for (Index layers = 1; layers <= 20; ++layers) {
    for (int parts = 1; parts <= layers + 2; ++parts) {
      if (parts <= layers) sizes_of(config_of(layers), parts, "layers");
      sizes_of(config_of(layers), parts, "flops");
    }
  }
}

TEST(Cut, ByLayersIsEven) {
  EXPECT_THAT(sizes_of(config_of(8), 4, "layers"), ElementsAre(3, 2, 2, 3));
  EXPECT_THAT(sizes_of(config_of(5), 1, "layers"), ElementsAre(7));
  EXPECT_THAT(sizes_of(config_of(3), 3, "layers"), ElementsAre(2, 1, 2));
}

TEST(Cut, ByFlopsIsTheBestOfAllCuts) {
  for (const Index vocab : {1, 300, 1000, 5000, 100000}) {
    for (Index layers = 1; layers <= 9; ++layers) {
      const model::ModelConfig config = config_of(layers, vocab);
      for (int parts = 1; parts <= layers + 2; ++parts)
        EXPECT_DOUBLE_EQ(largest(config, sizes_of(config, parts, "flops")), smallest_largest(config, parts))
            << vocab << " " << layers << " " << parts;
    }
  }
}

TEST(Cut, ByFlopsGivesAHeavyHeadAPartOfItsOwn) {
  EXPECT_THAT(sizes_of(config_of(6, 100000), 3, "flops"), ElementsAre(4, 3, 1));
  // A head of next to nothing: as even as by layers, but the first parts are the smaller ones.
  EXPECT_THAT(sizes_of(config_of(10, 1), 4, "flops"), ElementsAre(3, 3, 3, 3));
}

TEST(Cut, ByHandIsTakenAsGiven) {
  EXPECT_THAT(sizes_of(config_of(12), 3, "3,4,5"), ElementsAre(4, 4, 6));
  EXPECT_THAT(sizes_of(config_of(12), 3, "0, 12 ,0"), ElementsAre(1, 12, 1));
  EXPECT_THAT(sizes_of(config_of(2), 1, "2"), ElementsAre(4));
}

TEST(Cut, IsDescribedByWhatEachPartHolds) {
  const auto describe = [](const model::ModelConfig& config, int parts, const char* how) {
    return describe_ranges(cut_units(config, 128, parts, how), config.layers);
  };
  EXPECT_THAT(describe(config_of(12), 4, "3,1,7,1"),
              ElementsAre("embedding, layers 0-2", "layer 3", "layers 4-10", "layer 11, head"));
  EXPECT_THAT(describe(config_of(2), 3, "0,2,0"), ElementsAre("embedding", "layers 0-1", "head"));
  EXPECT_THAT(describe(config_of(1), 1, "1"), ElementsAre("embedding, layer 0, head"));
}

TEST(Cut, RefusesWhatDoesNotFitAndSaysWhatWould) {
  EXPECT_THAT(refusal(3, 4, "layers"),
              AllOf(HasSubstr("model.layers = 3"), HasSubstr("at most 3 parts"), HasSubstr("at least 4")));
  EXPECT_THAT(refusal(3, 6, "flops"),
              AllOf(HasSubstr("model.layers = 3"), HasSubstr("at most 5 parts"), HasSubstr("at least 4")));
  EXPECT_THAT(refusal(12, 4, "3,4,5"), HasSubstr("pipeline.cut = 3,4,5 has 3 entries: expected 4"));
  EXPECT_THAT(refusal(13, 3, "3,4,5"), HasSubstr("adds up to 12 layers: expected model.layers = 13"));
  EXPECT_THAT(refusal(12, 3, "6,0,6"), HasSubstr("leaves part 1 without a unit"));
  EXPECT_THAT(refusal(12, 4, "6,0,7"), AllOf(HasSubstr("3 problems"), HasSubstr("expected 4"),
                                             HasSubstr("adds up to 13"), HasSubstr("part 1")));
  for (const char* how : {"", "evenly", "3,", "3,-4,5", "3;4", "1e3", "99999999999999999999", "3,x"})
    EXPECT_THAT(refusal(12, 3, how), HasSubstr("use flops, layers, or the layers of each part as in 3,4,5"));
}

}  // namespace
}  // namespace cartan::pipeline
