// Row-wise operations against the reference, on the device under test; threads and the cut into micro-batches
// do not change a bit. Where a host device throws, a GPU leaves NaN.
#include <gtest/gtest.h>

#include "cartan/core/error.hpp"
#include "device/ops_fixture.hpp"

namespace cartan::device {
namespace {

using testing::Data;
using testing::expect_close;
using testing::folded;
using testing::Ints;
using testing::random_ids;
using testing::random_values;
using testing::Slots;
using testing::Values;

class RowOps : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  /// Rounding of a result of this size, and of fp32 sums before it.
  void close(const Values& found, const Values& expected, double size = 4) const {
    expect_close(found, expected, testing::epsilon(dtype()), 0x1p-20 * size);
  }
  Ops& ops_ = testing::device().ops();
  Stream& stream_ = testing::device().compute_stream();
};
INSTANTIATE_TEST_SUITE_P(Types, RowOps, ::testing::ValuesIn(testing::kComputeTypes),
                         [](const auto& param) { return std::string(name_of(param.param)); });

struct Size {
  Index rows, cols;
};
constexpr Size kSizes[] = {{0, 5}, {1, 1}, {1, 64}, {7, 5}, {33, 100}, {130, 257}};

TEST_P(RowOps, RmsNormMatchesTheReference) {
  for (const auto [rows, width] : kSizes) {
    for (const Index groups : {1, 3}) {
      Data x(dtype(), random_values(rows * groups * width, "x")),
          weight(dtype(), random_values(width, "weight"));
      Data dy(dtype(), random_values(rows * groups * width, "dy")), y(dtype(), rows * groups * width);
      Data inv(DType::f32, rows * groups);
      const auto expected = reference::rmsnorm_forward(x.values(), weight.values(), 1e-5);
      ops_.rmsnorm_forward(x.matrix(groups * width), weight.vector(), 1e-5f, y.matrix(groups * width),
                           inv.vector(), stream_);
      stream_.synchronize();
      close(y.values(), expected.y);
      expect_close(inv.values(), expected.inv_rms, 0x1p-20, 0);

      const FoldPlan plan{0, 1, 1, {0}};
      for (const bool accumulate : {false, true}) {
        Data dx(dtype(), random_values(rows * groups * width, "dx"));
        auto gradients = reference::rmsnorm_backward(x.values(), weight.values(), 1e-5, dy.values());
        const Values before = dx.values();
        for (std::size_t i = 0; accumulate && i < before.size(); ++i) gradients.dx[i] += before[i];
        Slots dweight(1, width);
        ops_.rmsnorm_backward(x.matrix(groups * width), weight.vector(), inv.vector(),
                              dy.matrix(groups * width), dx.matrix(groups * width), accumulate, {1, rows},
                              dweight.view(plan), stream_);
        stream_.synchronize();
        // The largest 1 / rms of so few normal numbers is some hundred.
        close(dx.values(), gradients.dx, width == 1 ? 1000 : 16);
        expect_close(dweight.values(), gradients.dweight, 0x1p-20,
                     0x1p-20 * static_cast<double>(rows * groups));
      }
    }
  }
}

TEST_P(RowOps, RmsNormWorksInPlace) {
  const Index rows = 9, width = 70;
  Data x(dtype(), random_values(rows * width, "x")), weight(dtype(), random_values(width, "weight"));
  Data dy(dtype(), random_values(rows * width, "dy")), y(dtype(), rows * width), dx(dtype(), rows * width);
  Data inv(DType::f32, rows), x_in_place = x, dy_in_place = dy;
  const FoldPlan plan{0, 1, 1, {0}};
  Slots a(1, width), b(1, width);
  ops_.rmsnorm_forward(x.matrix(width), weight.vector(), 1e-6f, y.matrix(width), inv.vector(), stream_);
  ops_.rmsnorm_forward(x_in_place.matrix(width), weight.vector(), 1e-6f, x_in_place.matrix(width), {},
                       stream_);
  ops_.rmsnorm_backward(x.matrix(width), weight.vector(), inv.vector(), dy.matrix(width), dx.matrix(width),
                        false, {1, rows}, a.view(plan), stream_);
  ops_.rmsnorm_backward(x.matrix(width), weight.vector(), inv.vector(), dy_in_place.matrix(width),
                        dy_in_place.matrix(width), false, {1, rows}, b.view(plan), stream_);
  stream_.synchronize();
  EXPECT_TRUE(y.same_bits(x_in_place));
  EXPECT_TRUE(dx.same_bits(dy_in_place));
  EXPECT_TRUE(a.memory[0].same_bits(b.memory[0]));
}

TEST_P(RowOps, RopeMatchesTheReferenceAndTurnsBack) {
  struct {
    Index heads, head_dim, angles;
  } const shapes[] = {{1, 2, 1}, {3, 64, 32}, {2, 100, 50}, {2, 10, 3}};
  for (const auto [heads, head_dim, angles] : shapes) {
    for (const Index rows : {1, 33}) {
      const Index cols = heads * head_dim;
      const Values angle = random_values(50 * angles, "angle");
      Values cosine, sine;
      for (const double a : angle) {
        cosine.push_back(std::cos(a));
        sine.push_back(std::sin(a));
      }
      Data x(dtype(), random_values(rows * cols, "x")), cosines(DType::f32, cosine), sines(DType::f32, sine);
      const auto positions = random_ids(rows, 50, "positions");
      Ints placed(positions);
      for (const bool inverse : {false, true}) {
        Data turned = x;
        ops_.rope(turned.matrix(cols), head_dim, placed, cosines.matrix(angles), sines.matrix(angles),
                  inverse, stream_);
        stream_.synchronize();
        close(turned.values(), reference::rope(x.values(), cols, head_dim, positions, cosines.values(),
                                               sines.values(), angles, inverse));
      }
    }
  }
}

TEST_P(RowOps, RopeShowsPositionsBeyondItsTables) {
  for (const std::int32_t beyond : {3, -1}) {
    // Two channels of each head pass; the row before is whole.
    Data x(dtype(), Values(12, 1.0)), table(DType::f32, 6);
    Ints positions({2, beyond});
    const auto host = testing::cpu(2);  // its stream will have failed
    Device& device = testing::on_cpu() ? *host : testing::device();
    device.ops().rope(x.matrix(6), 6, positions, table.matrix(2), table.matrix(2), false,
                      device.compute_stream());
    if (testing::on_cpu()) {
      EXPECT_THROW(device.compute_stream().synchronize(), InternalError);
      continue;
    }
    const Values found = x.values();
    EXPECT_EQ(Values(found.begin(), found.begin() + 6), (Values{0, 0, 0, 0, 1, 1}));
    for (std::size_t i = 6; i < 10; ++i) EXPECT_TRUE(std::isnan(found[i])) << i;
  }
}

TEST_P(RowOps, SwigluMatchesTheReference) {
  for (const auto [rows, width] : kSizes) {
    Data gate_up(dtype(), random_values(rows * 2 * width, "gate_up", 3)),
        dy(dtype(), random_values(rows * width, "dy"));
    Data y(dtype(), rows * width), again(dtype(), rows * width), dgate_up(dtype(), rows * 2 * width);
    ops_.swiglu_forward(gate_up.matrix(2 * width), y.matrix(width), stream_);
    ops_.swiglu_backward(gate_up.matrix(2 * width), dy.matrix(width), dgate_up.matrix(2 * width),
                         again.matrix(width), stream_);
    stream_.synchronize();
    close(y.values(), reference::swiglu_forward(gate_up.values(), width), 16);
    close(dgate_up.values(), reference::swiglu_backward(gate_up.values(), dy.values(), width), 16);
    EXPECT_TRUE(y.same_bits(again));

    Data gate_up_in_place = gate_up, dy_in_place = dy;
    ops_.swiglu_backward(gate_up_in_place.matrix(2 * width), dy_in_place.matrix(width),
                         gate_up_in_place.matrix(2 * width), dy_in_place.matrix(width), stream_);
    stream_.synchronize();
    EXPECT_TRUE(gate_up_in_place.same_bits(dgate_up));
    EXPECT_TRUE(dy_in_place.same_bits(y));
  }
}

TEST_P(RowOps, SwigluIsFiniteForLargeGatesAndPassesNaN) {
  const double large = dtype() == DType::f16 ? 65504 : 1e30;
  Data gate_up(dtype(), Values{-large, -200, -90, 0, 90, 200, large, NAN, 1, 1, 1, 1, 1, 1, 1, 1});
  Data y(dtype(), 8);
  ops_.swiglu_forward(gate_up.matrix(16), y.matrix(8), stream_);
  stream_.synchronize();
  const Values found = y.values();
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(found[static_cast<std::size_t>(i)], 0, 1e-5) << i;
  EXPECT_NEAR(found[4], 90, 1);
  EXPECT_NEAR(found[5], 200, 1);
  EXPECT_NEAR(found[6] / large, 1, 0.01);
  EXPECT_TRUE(std::isnan(found[7]));
}

TEST_P(RowOps, CrossEntropyMatchesTheReference) {
  for (const Index rows : {1, 7, 33}) {
    for (const Index vocab : {1, 5, 64, 257}) {
      Data logits(DType::f32, random_values(rows * vocab, "logits", 5));
      auto targets = random_ids(rows, vocab, "targets");
      if (rows > 2) targets[2] = -100;
      Ints placed(targets);
      const auto expected = reference::cross_entropy(logits.values(), targets);
      Data losses(DType::f32, rows), dlogits(dtype(), rows * vocab), losses_only(DType::f32, rows);
      ops_.cross_entropy(logits.matrix(vocab), placed, losses.vector(), dlogits.matrix(vocab), nullptr,
                         stream_);
      ops_.cross_entropy(logits.matrix(vocab), placed, losses_only.vector(), {}, nullptr, stream_);
      stream_.synchronize();
      expect_close(losses.values(), expected.row_loss, 0x1p-20, 0x1p-18);
      close(dlogits.values(), expected.dlogits);
      EXPECT_TRUE(losses.same_bits(losses_only));

      // The gradient over the logits: same first byte of each row, stride counted in its own elements.
      Data in_place = logits;
      const Index stride = vocab * static_cast<Index>(sizeof(float) / size_of(dtype()));
      const Matrix over{in_place.vector().data, dtype(), rows, vocab, stride};
      ops_.cross_entropy(in_place.matrix(vocab), placed, losses.vector(), over, nullptr, stream_);
      Data gathered(dtype(), rows * vocab);
      ops_.copy(over, gathered.matrix(vocab), stream_);
      stream_.synchronize();
      EXPECT_TRUE(gathered.same_bits(dlogits));
    }
  }
}

TEST_P(RowOps, CrossEntropyScalesTheGradientAlone) {
  const Index rows = 9, vocab = 257;
  Data logits(DType::f32, random_values(rows * vocab, "logits", 5)), losses(DType::f32, rows);
  auto targets = random_ids(rows, vocab, "targets");
  targets[4] = -100;
  Ints placed(targets);
  const auto expected = reference::cross_entropy(logits.values(), targets);
  for (const double scale : {0.125, 3.0, 4096.0}) {
    Data dlogits(dtype(), rows * vocab);
    const testing::Array<float> there(std::vector<float>{static_cast<float>(scale)});
    ops_.cross_entropy(logits.matrix(vocab), placed, losses.vector(), dlogits.matrix(vocab), there.data(),
                       stream_);
    stream_.synchronize();
    Values scaled = expected.dlogits;
    for (double& value : scaled) value *= scale;
    expect_close(dlogits.values(), scaled, testing::epsilon(dtype()), 0x1p-20 * std::max(scale, 1.0));
    expect_close(losses.values(), expected.row_loss, 0x1p-20, 0x1p-18);
  }
}

TEST(CrossEntropy, AScaleKeepsSmallGradientsOfHalfPrecision) {
  // softmax of the last column is exp(-20) = 2e-9: 0 in fp16, whose smallest number is 6e-8.
  Device& device = testing::device();
  Data logits(DType::f32, Values{0, -20}), losses(DType::f32, 1);
  Data plain(DType::f16, 2), scaled(DType::f16, 2);
  Ints targets(std::vector<std::int32_t>{0});
  device.ops().cross_entropy(logits.matrix(2), targets, losses.vector(), plain.matrix(2), nullptr,
                             device.compute_stream());
  const testing::Array<float> scale(std::vector<float>{65536.0f});
  device.ops().cross_entropy(logits.matrix(2), targets, losses.vector(), scaled.matrix(2), scale.data(),
                             device.compute_stream());
  device.compute_stream().synchronize();
  EXPECT_EQ(plain.values()[1], 0.0);
  EXPECT_NEAR(scaled.values()[1], 65536 * std::exp(-20.0), 65536 * std::exp(-20.0) * 0x1p-10);
}

TEST_P(RowOps, CrossEntropyShowsNaNAndBearsInfinity) {
  Data logits(DType::f32, Values{1, NAN, 2, 1, -HUGE_VAL, 2, 1000, -1000, 0}), losses(DType::f32, 3);
  Ints targets(std::vector<std::int32_t>{0, 0, 0});
  ops_.cross_entropy(logits.matrix(3), targets, losses.vector(), {}, nullptr, stream_);
  stream_.synchronize();
  EXPECT_TRUE(std::isnan(losses.values()[0]));
  EXPECT_NEAR(losses.values()[1], std::log(1 + std::exp(1.0)), 1e-6);
  EXPECT_EQ(losses.values()[2], 0.0);
}

TEST_P(RowOps, CrossEntropyRefusesTargetsBeyondTheVocabulary) {
  if (!testing::on_cpu()) GTEST_SKIP() << "a GPU does not throw";
  const auto device = testing::cpu(2);
  Data logits(DType::f32, 6), losses(DType::f32, 2);
  Ints targets({0, 3});
  device->ops().cross_entropy(logits.matrix(3), targets, losses.vector(), {}, nullptr,
                              device->compute_stream());
  EXPECT_THROW(device->compute_stream().synchronize(), InternalError);
}

TEST_P(RowOps, EmbeddingMatchesTheReference) {
  for (const Index hidden : {1, 5, 100, 2100}) {
    for (const Index length : {1, 7, 33}) {
      const Index sequences = 3, vocab = 17, tokens = sequences * length;
      Data table(dtype(), random_values(vocab * hidden, "table")),
          dout(dtype(), random_values(tokens * hidden, "dout"));
      Data out(dtype(), tokens * hidden);
      const auto ids = random_ids(tokens, vocab, "ids");
      Ints placed(ids);
      ops_.embedding_forward(placed, table.matrix(hidden), 0, out.matrix(hidden), stream_);
      stream_.synchronize();
      EXPECT_EQ(out.values(), reference::embedding_forward(ids, table.values(), 0, hidden));

      const FoldPlan plan = plan_folds(CanonicalTree(sequences), 0, sequences, sequences).front();
      Slots dtable(1, vocab * hidden);
      ops_.embedding_backward(placed, dout.matrix(hidden), {sequences, length}, 0, vocab, dtable.view(plan),
                              stream_);
      stream_.synchronize();
      expect_close(dtable.values(), reference::embedding_backward(ids, dout.values(), 0, vocab, hidden),
                   0x1p-20, 1e-5);
    }
  }
}

// So many rows that the kernel lists the tokens of several in one warp.
TEST_P(RowOps, EmbeddingOfALargeVocabularyMatchesTheReference) {
  const Index hidden = 3, sequences = 3, length = 33, vocab = 6143, tokens = sequences * length;
  Data dout(dtype(), random_values(tokens * hidden, "dout"));
  auto ids = random_ids(tokens, vocab, "ids");
  for (std::size_t i = 0; i < 40; ++i) ids[i] %= 3;  // neighbours
  const Ints placed(ids);
  const FoldPlan plan = plan_folds(CanonicalTree(sequences), 0, sequences, sequences).front();
  Slots dtable(1, vocab * hidden);
  ops_.embedding_backward(placed, dout.matrix(hidden), {sequences, length}, 0, vocab, dtable.view(plan),
                          stream_);
  stream_.synchronize();
  expect_close(dtable.values(), reference::embedding_backward(ids, dout.values(), 0, vocab, hidden), 0x1p-20,
               1e-5);
}

TEST_P(RowOps, EmbeddingShowsNegativeIds) {
  Data table(dtype(), Values(20, 1.0)), out(dtype(), 10);
  Ints ids({3, -1});
  const auto host = testing::cpu(2);  // its stream will have failed
  Device& device = testing::on_cpu() ? *host : testing::device();
  device.ops().embedding_forward(ids, table.matrix(5), 0, out.matrix(5), device.compute_stream());
  if (testing::on_cpu()) {
    EXPECT_THROW(device.compute_stream().synchronize(), InternalError);
    return;
  }
  const Values found = out.values();
  EXPECT_EQ(Values(found.begin(), found.begin() + 5), Values(5, 1.0));
  for (std::size_t i = 5; i < 10; ++i) EXPECT_TRUE(std::isnan(found[i])) << i;
}

TEST_P(RowOps, GradientsHaveTheSameBitsForEverySplitAndThreads) {
  const Index length = 6, width = 37, groups = 2, vocab = 11;
  for (const Index sequences : {1, 2, 3, 5, 8, 11}) {
    const Index tokens = sequences * length, cols = groups * width;
    Data x(dtype(), random_values(tokens * cols, "x")), dy(dtype(), random_values(tokens * cols, "dy"));
    Data weight(dtype(), random_values(width, "weight")), y(dtype(), tokens * cols);
    Data inv(DType::f32, tokens * groups);
    Ints ids(random_ids(tokens, vocab, "ids"));
    ops_.rmsnorm_forward(x.matrix(cols), weight.vector(), 1e-5f, y.matrix(cols), inv.vector(), stream_);
    const auto norm = [&](Device& device, Index micro) {
      Data dx(dtype(), tokens * cols);
      return folded(sequences, micro, width, [&](Index first, Index count, const GradientView& view) {
        const Index row = first * length, rows = count * length;
        device.ops().rmsnorm_backward(
            x.matrix(cols).row_block(row, rows), weight.vector(),
            inv.vector().slice(row * groups, rows * groups), dy.matrix(cols).row_block(row, rows),
            dx.matrix(cols).row_block(row, rows), false, {count, length}, view, device.compute_stream());
        device.compute_stream().synchronize();
      });
    };
    const auto embedding = [&](Device& device, Index micro) {
      return folded(sequences, micro, vocab * cols, [&](Index first, Index count, const GradientView& view) {
        device.ops().embedding_backward(ids.part(first * length, count * length),
                                        dy.matrix(cols).row_block(first * length, count * length),
                                        {count, length}, 0, vocab, view, device.compute_stream());
        device.compute_stream().synchronize();
      });
    };
    const auto norm_whole = norm(testing::device(), sequences);
    const auto embedding_whole = embedding(testing::device(), sequences);
    const auto compare = [&](Device& device, Index micro) {
      EXPECT_TRUE(testing::same_bits(norm_whole, norm(device, micro))) << sequences << " by " << micro;
      EXPECT_TRUE(testing::same_bits(embedding_whole, embedding(device, micro)))
          << sequences << " by " << micro;
    };
    for (const Index micro : {1, 2, 3, 4, 7}) {
      if (!testing::on_cpu()) compare(testing::device(), micro);
      for (const int threads : {1, 2, 3}) {
        if (testing::on_cpu()) compare(*testing::cpu(threads), micro);
      }
    }
  }
}

TEST(EmbeddingBackward, OverwritesSlotsOfRowsThatNoTokenHas) {
  Device& device = testing::device();
  Data dout(DType::f32, Values{1, 2, 3, 4});
  Ints ids({2, 2});
  // One value on the stack already; the new leaf becomes a second one.
  const FoldPlan plan{1, 2, 2, {0}};
  Slots slots(2, 8);
  slots.memory[0].set(Values(8, 5.0));
  device.ops().embedding_backward(ids, dout.matrix(2), {1, 2}, 0, 4, slots.view(plan),
                                  device.compute_stream());
  device.compute_stream().synchronize();
  EXPECT_EQ(slots.floats(0), std::vector<float>(8, 5.0f));
  EXPECT_EQ(slots.floats(1), (std::vector<float>{0, 0, 0, 0, 4, 6, 0, 0}));
}

}  // namespace
}  // namespace cartan::device
