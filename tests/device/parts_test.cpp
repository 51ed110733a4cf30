// Operations on parts, as tensor parallelism cuts the vocabulary and the inner sums: what the parts give
// together is what one call gives on the whole.
#include <gtest/gtest.h>

#include "cartan/core/error.hpp"
#include "device/ops_fixture.hpp"

namespace cartan::device {
namespace {

using testing::Data;
using testing::Embedded;
using testing::expect_close;
using testing::Ints;
using testing::random_ids;
using testing::random_values;
using testing::Slots;
using testing::Values;

class PartOps : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  Ops& ops_ = testing::device().ops();
  Stream& stream_ = testing::device().compute_stream();
};
INSTANTIATE_TEST_SUITE_P(Types, PartOps, ::testing::ValuesIn(testing::kComputeTypes),
                         [](const auto& param) { return std::string(name_of(param.param)); });

/// Where a vocabulary is cut: part i is [cuts[i], cuts[i + 1]).
using Cuts = std::vector<Index>;

TEST_P(PartOps, SlicesOfAnEmbeddingTableAddUpToTheWhole) {
  const Index vocab = 17, hidden = 37, sequences = 3, length = 11, tokens = sequences * length;
  Data table(dtype(), random_values(vocab * hidden, "table"));
  Data dout(dtype(), random_values(tokens * hidden, "dout")), whole(dtype(), tokens * hidden);
  const auto ids = random_ids(tokens, vocab, "ids");
  const Ints placed(ids);
  const FoldPlan plan = plan_folds(CanonicalTree(sequences), 0, sequences, sequences).front();
  Slots dtable(1, vocab * hidden);
  ops_.embedding_forward(placed, table.matrix(hidden), 0, whole.matrix(hidden), stream_);
  ops_.embedding_backward(placed, dout.matrix(hidden), {sequences, length}, 0, vocab, dtable.view(plan),
                          stream_);
  stream_.synchronize();
  for (const Cuts& cuts : {Cuts{0, 17}, Cuts{0, 5, 17}, Cuts{0, 1, 1, 16, 17}}) {
    Values sum(static_cast<std::size_t>(tokens * hidden), 0.0);
    std::vector<float> gradient;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const Index first = cuts[i], rows = cuts[i + 1] - first;
      Data out(dtype(), Values(sum.size(), NAN));
      Slots part(1, rows * hidden);
      ops_.embedding_forward(placed, table.matrix(hidden).row_block(first, rows), first, out.matrix(hidden),
                             stream_);
      ops_.embedding_backward(placed, dout.matrix(hidden), {sequences, length}, first, rows, part.view(plan),
                              stream_);
      stream_.synchronize();
      const Values all = table.values();
      const Values slice(all.begin() + first * hidden, all.begin() + (first + rows) * hidden);
      EXPECT_EQ(out.values(), reference::embedding_forward(ids, slice, first, hidden));
      expect_close(part.values(), reference::embedding_backward(ids, dout.values(), first, rows, hidden),
                   0x1p-20, 1e-5);
      const Values found = out.values();
      for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += found[e];
      const std::vector<float> part_gradient = part.floats();
      gradient.insert(gradient.end(), part_gradient.begin(), part_gradient.end());
    }
    EXPECT_EQ(sum, whole.values());
    EXPECT_TRUE(testing::same_bits(gradient, dtable.floats()));
  }
}

/// The statistics of columns [first, first + count).
struct Stats {
  Data maximum, sum, target;
  explicit Stats(Index rows)
      : maximum(DType::f32, Values(static_cast<std::size_t>(rows), NAN)), sum(maximum), target(maximum) {}
};

/// Statistics of a whole row from those of its parts.
Stats combine(const std::vector<Stats>& parts, Index rows) {
  Values maximum(static_cast<std::size_t>(rows), -HUGE_VAL), target = maximum, sum(maximum.size(), 0.0);
  for (const Stats& part : parts) {
    const Values m = part.maximum.values(), t = part.target.values();
    for (std::size_t i = 0; i < m.size(); ++i) {
      maximum[i] = std::max(maximum[i], m[i]);
      target[i] = std::max(target[i], t[i]);
    }
  }
  for (const Stats& part : parts) {
    const Values m = part.maximum.values(), s = part.sum.values();
    for (std::size_t i = 0; i < m.size(); ++i) sum[i] += s[i] * std::exp(m[i] - maximum[i]);
  }
  Stats whole(rows);
  whole.maximum.set(maximum);
  whole.sum.set(sum);
  whole.target.set(target);
  return whole;
}

TEST_P(PartOps, CrossEntropyOfColumnsIsThatOfTheWhole) {
  constexpr float kScale = 6.0f;
  const testing::Array<float> scale(std::vector<float>{kScale});
  for (const Index rows : {0, 1, 33}) {
    for (const Index vocab : {1, 5, 257}) {
      Data logits(DType::f32, random_values(rows * vocab, "logits", 5));
      auto targets = random_ids(rows, vocab, "targets");
      if (rows > 2) targets[2] = -100;
      const Ints placed(targets);
      Data losses(DType::f32, rows), dlogits(dtype(), rows * vocab);
      ops_.cross_entropy(logits.matrix(vocab), placed, losses.vector(), dlogits.matrix(vocab), scale.data(),
                         stream_);
      stream_.synchronize();
      for (const Cuts& cuts :
           {Cuts{0, vocab}, Cuts{0, vocab / 3, vocab}, Cuts{0, vocab, vocab}, Cuts{0, 0, vocab / 2, vocab}}) {
        const std::size_t count = cuts.size() - 1;
        std::vector<Stats> parts;
        for (std::size_t i = 0; i < count; ++i) {
          Stats& part = parts.emplace_back(rows);
          ops_.cross_entropy_stats(logits.matrix(vocab).col_block(cuts[i], cuts[i + 1] - cuts[i]), placed,
                                   cuts[i], part.maximum.vector(), part.sum.vector(), part.target.vector(),
                                   stream_);
        }
        stream_.synchronize();
        Stats whole = combine(parts, rows);
        Values stacked;
        for (const Stats& part : parts)
          for (const Data* row : {&part.maximum, &part.sum, &part.target}) {
            const Values values = row->values();
            stacked.insert(stacked.end(), values.begin(), values.end());
          }
        Data stack(DType::f32, stacked);
        Stats combined(rows);
        ops_.cross_entropy_combine(
            {stack.vector().data, DType::f32, static_cast<Index>(3 * count), rows, rows},
            static_cast<Index>(count), combined.maximum.vector(), combined.sum.vector(),
            combined.target.vector(), stream_);
        stream_.synchronize();
        EXPECT_EQ(combined.maximum.values(), whole.maximum.values());
        EXPECT_EQ(combined.target.values(), whole.target.values());
        expect_close(combined.sum.values(), whole.sum.values(), 0x1p-21, 0x1p-21);
        Data found(dtype(), Values(dlogits.values().size(), NAN));
        for (std::size_t i = 0; i < count; ++i) {
          const Index first = cuts[i], cols = cuts[i + 1] - first;
          Data part_losses(DType::f32, Values(static_cast<std::size_t>(rows), NAN));
          ops_.cross_entropy_finish(logits.matrix(vocab).col_block(first, cols), placed, first,
                                    whole.maximum.vector(), whole.sum.vector(), whole.target.vector(),
                                    part_losses.vector(), found.matrix(vocab).col_block(first, cols),
                                    scale.data(), stream_);
          stream_.synchronize();
          expect_close(part_losses.values(), losses.values(), 0x1p-21, 0x1p-21);
          EXPECT_TRUE(count > 1 || part_losses.same_bits(losses));
        }
        expect_close(found.values(), dlogits.values(), 2 * testing::epsilon(dtype()), 0x1p-21 * kScale);
        EXPECT_TRUE(count > 1 || found.same_bits(dlogits));
      }
    }
  }
}

TEST_P(PartOps, CrossEntropyOfColumnsMayOverwriteThem) {
  const Index rows = 9, vocab = 70;
  Data logits(DType::f32, random_values(rows * vocab, "logits", 5)), dlogits(dtype(), rows * vocab);
  const Ints targets(random_ids(rows, 2 * vocab, "targets"));  // half of them lie elsewhere
  Stats stats(rows);
  ops_.cross_entropy_stats(logits.matrix(vocab), targets, 0, stats.maximum.vector(), stats.sum.vector(),
                           stats.target.vector(), stream_);
  ops_.cross_entropy_finish(logits.matrix(vocab), targets, 0, stats.maximum.vector(), stats.sum.vector(),
                            stats.target.vector(), {}, dlogits.matrix(vocab), nullptr, stream_);
  const Matrix over{logits.vector().data, dtype(), rows, vocab,
                    vocab * static_cast<Index>(sizeof(float) / size_of(dtype()))};
  ops_.cross_entropy_finish(logits.matrix(vocab), targets, 0, stats.maximum.vector(), stats.sum.vector(),
                            stats.target.vector(), {}, over, nullptr, stream_);
  Data gathered(dtype(), rows * vocab);
  ops_.copy(over, gathered.matrix(vocab), stream_);
  stream_.synchronize();
  EXPECT_TRUE(gathered.same_bits(dlogits));
}

TEST_P(PartOps, CrossEntropyStatsOfNothingAreNothing) {
  const Ints targets(std::vector<std::int32_t>{0, 6});
  const auto stats_of = [&](Data logits, Index cols) {
    Stats stats(2);
    ops_.cross_entropy_stats({logits.vector().data, DType::f32, 2, cols, cols}, targets, 5,
                             stats.maximum.vector(), stats.sum.vector(), stats.target.vector(), stream_);
    stream_.synchronize();
    return stats;
  };
  for (const Index cols : {0, 3}) {
    const Stats stats =
        stats_of(Data(DType::f32, Values(static_cast<std::size_t>(2 * cols), -HUGE_VAL)), cols);
    EXPECT_EQ(stats.maximum.values(), Values(2, -HUGE_VAL));
    EXPECT_EQ(stats.sum.values(), Values(2, 0.0));
    EXPECT_EQ(stats.target.values(), Values(2, -HUGE_VAL));
  }
  const Stats poisoned = stats_of(Data(DType::f32, Values(6, NAN)), 3);
  EXPECT_TRUE(std::isnan(poisoned.sum.values()[0]));
}

TEST_P(PartOps, SumOfPartsMatchesTheReference) {
  struct {
    Index rows, cols;
  } const sizes[] = {{0, 5}, {1, 1}, {7, 5}, {33, 100}, {130, 257}};
  for (const auto [rows, cols] : sizes) {
    for (const Index parts : {1, 2, 3, 5}) {
      for (const DType out_type : testing::kComputeTypes) {
        Data stacked(dtype(), random_values(parts * rows * cols, "stacked"));
        Data residual(out_type, random_values(rows * cols, "residual")), out(out_type, rows * cols),
            alone = out;
        ops_.sum_parts(stacked.matrix(cols), parts, residual.matrix(cols), out.matrix(cols), stream_);
        ops_.sum_parts(stacked.matrix(cols), parts, {}, alone.matrix(cols), stream_);
        stream_.synchronize();
        const double epsilon = testing::epsilon(out_type);
        expect_close(out.values(), reference::sum_parts(stacked.values(), parts, residual.values()), epsilon,
                     0x1p-20);
        expect_close(alone.values(), reference::sum_parts(stacked.values(), parts, {}), epsilon, 0x1p-20);
        Data in_place = residual;
        ops_.sum_parts(stacked.matrix(cols), parts, in_place.matrix(cols), in_place.matrix(cols), stream_);
        stream_.synchronize();
        EXPECT_TRUE(in_place.same_bits(out));
        // Packed and unpacked, and on a cpu thread of its own: the same bits.
        Embedded apart(dtype(), stacked.values(), cols, 1, 3),
            before(out_type, residual.values(), cols, 1, 1),
            result(out_type, Values(out.values().size(), NAN), cols, 3, 2);
        ops_.sum_parts(apart.matrix(), parts, before.matrix(), result.matrix(), stream_);
        stream_.synchronize();
        EXPECT_EQ(result.values(), out.values());
        EXPECT_TRUE(result.alone());
        if (!testing::on_cpu()) continue;
        Data one_thread(out_type, rows * cols);
        const auto device = testing::cpu(1);
        device->ops().sum_parts(stacked.matrix(cols), parts, residual.matrix(cols), one_thread.matrix(cols),
                                device->compute_stream());
        device->compute_stream().synchronize();
        EXPECT_TRUE(one_thread.same_bits(out));
      }
    }
  }
}

TEST_P(PartOps, CrossEntropyOfLongRowsMayOverwriteThem) {
  // Several rounds of a block of threads, rows on and off the 16 bytes of a pack.
  const Index rows = 3;
  for (const Index vocab : {1024, 1025, 4095, 4096, 4097, 8200, 33000, 70001}) {
    const Values values = random_values(rows * vocab, "logits", 5);
    const Ints targets(std::vector<std::int32_t>{static_cast<std::int32_t>(vocab - 1), -1,
                                                 static_cast<std::int32_t>(vocab / 2)});
    const auto expected = reference::cross_entropy(Data(DType::f32, values).values(), targets.host());
    for (const Index gap : {0, 1, 8}) {
      const Index stride = vocab + gap;
      Embedded logits(DType::f32, values, vocab, gap % 8, gap);
      Data losses(DType::f32, rows), dlogits(dtype(), rows * vocab), gathered(dtype(), rows * vocab);
      ops_.cross_entropy(logits.matrix(), targets, losses.vector(), dlogits.matrix(vocab), nullptr, stream_);
      stream_.synchronize();
      // A long sum of small numbers is a little worse than its last rounding.
      expect_close(losses.values(), expected.row_loss, 0x1p-19, 0x1p-18);
      expect_close(dlogits.values(), expected.dlogits, 2 * testing::epsilon(dtype()), 0x1p-18);
      const Matrix over{logits.matrix().data, dtype(), rows, vocab,
                        stride * static_cast<Index>(sizeof(float) / size_of(dtype()))};
      ops_.cross_entropy(logits.matrix(), targets, losses.vector(), over, nullptr, stream_);
      ops_.copy(over, gathered.matrix(vocab), stream_);
      stream_.synchronize();
      EXPECT_TRUE(gathered.same_bits(dlogits)) << vocab << " columns, stride " << stride;
    }
  }
}

TEST_P(PartOps, SumOfPartsIsRoundedOnce) {
  // 256 + 1 + 1 in bf16, where 256 + 1 is 256 again; 2048 in fp16.
  for (const auto& [out_type, large] : {std::pair{DType::bf16, 256.0}, {DType::f16, 2048.0}}) {
    Data stacked(dtype(), Values{1, 1}), residual(out_type, Values{large}), out(out_type, 1);
    ops_.sum_parts(stacked.matrix(1), 2, residual.matrix(1), out.matrix(1), stream_);
    stream_.synchronize();
    EXPECT_EQ(out.values(), Values{large + 2});
  }
}

TEST_P(PartOps, SumOfPartsAddsTheResidualLast) {
  // In fp32: 2^24 + (1 + 1) is 2^24 + 2, but (2^24 + 1) + 1 is 2^24.
  Data stacked(dtype(), Values{1, 1}), residual(DType::f32, Values{0x1p24}), out(DType::f32, 1);
  ops_.sum_parts(stacked.matrix(1), 2, residual.matrix(1), out.matrix(1), stream_);
  stream_.synchronize();
  EXPECT_EQ(out.values(), Values{0x1p24 + 2});
}

TEST_P(PartOps, RefuseShapesThatDoNotFit) {
  Data a(dtype(), 12), b(dtype(), 6), losses(DType::f32, 2);
  EXPECT_THROW(ops_.sum_parts(a.matrix(3), 3, {}, b.matrix(3), stream_), InternalError);
  EXPECT_THROW(ops_.sum_parts(a.matrix(3), 0, {}, b.matrix(3), stream_), InternalError);
  EXPECT_THROW(ops_.embedding_forward(Ints(random_ids(2, 4, "ids")), a.matrix(3), -1, b.matrix(3), stream_),
               InternalError);
  Data logits(DType::f32, 6), three(DType::f32, 3);
  const Ints targets(std::vector<std::int32_t>{0, 0});
  EXPECT_THROW(ops_.cross_entropy_stats(logits.matrix(3), targets, 0, three.vector(), losses.vector(),
                                        losses.vector(), stream_),
               InternalError);
  EXPECT_THROW(ops_.attention_merge(a.matrix(6), losses.vector(), a.matrix(6), three.vector(), 6, stream_),
               InternalError);
}

}  // namespace
}  // namespace cartan::device
