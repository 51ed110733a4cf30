#include "cartan/shard/flat_layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cartan/core/narrow.hpp"
#include "cartan/device/ops.hpp"

namespace cartan::shard {
namespace {

model::ModelConfig odd_model(bool tied) {
  model::ModelConfig c;
  c.hidden = 30;
  c.layers = 3;
  c.heads = 3;
  c.ffn = 41;
  c.vocab = 101;
  c.tied = tied;
  c.qkv_bias = true;
  c.derive(c.vocab);
  return c;
}

TEST(FlatLayout, UnitsStartAtBlocksAndDoNotOverlap) {
  for (const bool tied : {false, true}) {
    const model::ModelConfig config = odd_model(tied);
    const FlatLayout layout(config);
    ASSERT_EQ(layout.units().size(), 5u);
    Index parameters = 0, gradients = 0, elements = 0;
    for (const FlatUnit& unit : layout.units()) {
      EXPECT_EQ(unit.parameter_begin % device::kSumBlock, 0);
      EXPECT_EQ(unit.gradient.begin % device::kSumBlock, 0);
      EXPECT_GE(unit.parameter_begin, parameters);
      EXPECT_GE(unit.gradient.begin, gradients);
      EXPECT_EQ(unit.gradient.elements, unit.spec->elements);
      parameters = unit.parameter_begin + unit.spec->elements;
      gradients = unit.gradient.begin + unit.spec->elements;
      elements += unit.spec->elements;
    }
    EXPECT_LE(parameters, layout.parameter_elements());
    EXPECT_LE(gradients, layout.gradient_elements());
    EXPECT_EQ(elements, model::parameter_count(config));
  }
}

TEST(FlatLayout, OwnersOfEveryStageCoverEachElement) {
  const model::ModelConfig config = odd_model(true);
  for (const int stage : {0, 1, 2, 3})
    for (const auto& [size, width] : {std::pair{1, 1}, {3, 3}, {6, 2}, {6, 3}, {64, 8}}) {
      std::vector<std::vector<int>> owned(5), alone(5);
      for (int rank = 0; rank < size; ++rank) {
        const FlatLayout layout(config, units_of_stages(config, {{0, 5}}),
                                stage >= 2 ? GradientLife::transient : GradientLife::step,
                                {stage, rank, size, width});
        Index next = 0;
        for (std::size_t u = 0; u < 5; ++u) {
          const GradientPart& part = layout.units()[u].gradient;
          owned[u].resize(narrow<std::size_t>(part.elements));
          alone[u].resize(owned[u].size());
          for (Index i = part.owned.begin; i < part.owned.end; ++i) ++owned[u][narrow<std::size_t>(i)];
          for (Index i = part.alone.begin; i < part.alone.end; ++i) ++alone[u][narrow<std::size_t>(i)];
          EXPECT_GE(part.alone.begin, part.owned.begin);
          EXPECT_LE(part.alone.end, part.owned.end);
          EXPECT_EQ(part.owned_begin, next);
          next += round_up(part.owned.end - part.owned.begin, device::kSumBlock);
        }
        EXPECT_EQ(layout.owned_elements(), next);
      }
      for (std::size_t u = 0; u < 5; ++u) {
        EXPECT_THAT(alone[u], ::testing::Each(1)) << "stage " << stage << ", " << size << " ranks";
        EXPECT_THAT(owned[u], ::testing::Each(stage == 0 ? size : size / width));
      }
    }
}

TEST(FlatLayout, FusedGradientsOfBlocksShareOnePlace) {
  for (const bool tied : {false, true}) {
    const FlatLayout layout(odd_model(tied), GradientLife::fused);
    const auto& units = layout.units();
    for (const std::size_t block : {2u, 3u}) EXPECT_EQ(units[block].gradient.begin, units[1].gradient.begin);
    EXPECT_EQ(layout.tied_gradient().has_value(), tied);
    if (tied) {
      EXPECT_EQ(layout.tied_gradient()->begin, units[0].gradient.begin);
    }
    EXPECT_LT(layout.gradient_elements(), FlatLayout(odd_model(tied)).gradient_elements());
    EXPECT_EQ(layout.parameter_elements(), FlatLayout(odd_model(tied)).parameter_elements());
  }
}

TEST(FlatLayout, TransientGradientsOfBlocksTakeTurnsInTwoPlaces) {
  const model::ModelConfig config = odd_model(true);
  const FlatLayout layout(config, units_of_stages(config, {{0, 5}}), GradientLife::transient, {2, 0, 2, 2});
  const auto& units = layout.units();
  EXPECT_NE(units[1].gradient.begin, units[2].gradient.begin);
  EXPECT_EQ(units[1].gradient.begin, units[3].gradient.begin);
}

TEST(FlatLayout, TheHeadsStageOfATiedModelHasACopyOfTheEmbedding) {
  const model::ModelConfig config = odd_model(true);
  const StageUnits first = units_of_stages(config, {{0, 2}}), last = units_of_stages(config, {{2, 5}});
  EXPECT_EQ(first.numbers, (std::vector<Index>{0, 1}));
  EXPECT_EQ(last.numbers, (std::vector<Index>{0, 2, 3, 4}));
  const FlatLayout one(config, first, GradientLife::step, {}), two(config, last, GradientLife::step, {});
  EXPECT_FALSE(one.units()[0].is_copy);
  EXPECT_TRUE(two.units()[0].is_copy);
  EXPECT_FALSE(one.tied_gradient() || two.tied_gradient());
  EXPECT_EQ(one.units()[0].spec->elements, two.units()[0].spec->elements);
}

TEST(Units, HoldGroupsOfMatricesWithoutGaps) {
  for (const model::UnitSpec& unit : model::describe_units(odd_model(false))) {
    Index next = 0;
    for (const model::ParameterSpec& parameter : unit.parameters) {
      EXPECT_EQ(parameter.offset, next) << parameter.name;
      EXPECT_EQ(parameter.decayed, parameter.shape.size() == 2) << parameter.name;
      next += parameter.elements();
    }
    EXPECT_EQ(unit.elements, next);
  }
}

}  // namespace
}  // namespace cartan::shard
