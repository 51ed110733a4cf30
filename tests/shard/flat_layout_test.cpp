#include "cartan/shard/flat_layout.hpp"

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
    const FlatLayout layout(config, {0, 5});
    ASSERT_EQ(layout.units().size(), 5u);
    Index parameters = 0, gradients = 0, blocks = 0, elements = 0;
    for (const FlatUnit& unit : layout.units()) {
      EXPECT_EQ(unit.parameter_begin % device::kSumBlock, 0);
      EXPECT_EQ(unit.gradient_begin % device::kSumBlock, 0);
      EXPECT_GE(unit.parameter_begin, parameters);
      EXPECT_GE(unit.gradient_begin, gradients);
      EXPECT_EQ(unit.first_block, blocks);
      parameters = unit.parameter_begin + unit.spec->elements;
      gradients = unit.gradient_begin + unit.spec->elements;
      blocks += unit.blocks;
      elements += unit.spec->elements;
    }
    EXPECT_LE(parameters, layout.parameter_elements());
    EXPECT_LE(gradients, layout.gradient_elements());
    EXPECT_EQ(blocks, layout.model_blocks());
    EXPECT_EQ(elements, model::parameter_count(config));
  }
}

TEST(FlatLayout, TransientGradientsOfBlocksShareOnePlace) {
  for (const bool tied : {false, true}) {
    const FlatLayout layout(odd_model(tied), {0, 5}, GradientLife::transient);
    const auto& units = layout.units();
    for (const std::size_t block : {2u, 3u}) EXPECT_EQ(units[block].gradient_begin, units[1].gradient_begin);
    EXPECT_EQ(units[1].gradient_begin, units[0].gradient_end);
    EXPECT_EQ(units[4].gradient_begin, units[1].gradient_end);
    EXPECT_EQ(layout.gradient_elements(), units[4].gradient_end);
    EXPECT_EQ(layout.tied_gradient_begin(),
              tied ? std::optional<Index>(units[0].gradient_begin) : std::nullopt);
    EXPECT_EQ(layout.parameter_elements(), FlatLayout(odd_model(tied), {0, 5}).parameter_elements());
  }
}

TEST(FlatLayout, StagesShareTheModelsBlocks) {
  const model::ModelConfig config = odd_model(true);
  const FlatLayout whole(config, {0, 5}), first(config, {0, 2}), second(config, {2, 5});
  EXPECT_EQ(first.model_blocks(), whole.model_blocks());
  EXPECT_EQ(second.units().front().first_block, whole.units()[2].first_block);
  EXPECT_EQ(first.units().size() + second.units().size(), whole.units().size());
  EXPECT_EQ(second.units().front().parameter_begin, 0);
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
