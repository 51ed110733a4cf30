// Attention of a run of queries with a run of keys, as context parallelism cuts sequences: each call against
// the reference, zigzag cuts put together again against the whole, and the bits that must not change.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "device/ops_fixture.hpp"

namespace cartan::device {
namespace {

using testing::Data;
using testing::device_with;
using testing::random_values;
using testing::Values;

/// Consecutive positions of each sequence.
struct Range {
  Index first = 0, length = 0;
};

struct Heads {
  Index heads, kv_heads, head_dim;
};

/// |found - expected| <= tolerance * (1 + |expected|).
void expect_near(const Values& found, const Values& expected, double tolerance, const char* what) {
  SCOPED_TRACE(what);
  testing::expect_close(found, expected, tolerance, tolerance);
}

/// With 16 bits the cpu rounds results only; tensor cores take P and dS rounded too, whose errors add up like
/// the numbers that they weigh.
double out_tolerance(DType dtype) {
  if (dtype == DType::f32) return 2e-6;
  return testing::on_cpu() ? 1.02 * testing::epsilon(dtype) : 2 * testing::epsilon(dtype);
}
double gradient_tolerance(DType dtype, DType gradient_type) {
  if (dtype != DType::f32 && !testing::on_cpu()) return 4 * testing::epsilon(dtype);
  return gradient_type == DType::f32 ? 2e-5 : 1.28 * testing::epsilon(gradient_type);
}

/// Whole sequences, and what a rank has of them.
struct Problem {
  DType dtype;
  Index sequences, length;
  Heads h;
  std::vector<std::int32_t> starts;
  Values q, k, v, dout;  ///< as rounded to dtype

  Problem(DType type, Index sequences_, Index length_, Heads heads, bool documents)
      : dtype(type),
        sequences(sequences_),
        length(length_),
        h(heads),
        q(make(q_cols(), "q")),
        k(make(kv_cols(), "k")),
        v(make(kv_cols(), "v")),
        dout(make(q_cols(), "dout")) {
    for (Index s = 0; s < sequences; ++s) {
      std::int32_t start = 0;
      for (Index p = 0; p < length; ++p) {
        if (documents && (p * 7 + s) % 31 == 0) start = static_cast<std::int32_t>(p);
        starts.push_back(start);
      }
    }
  }

  Index q_cols() const { return h.heads * h.head_dim; }
  Index kv_cols() const { return h.kv_heads * h.head_dim; }
  Values make(Index cols, std::string_view name) const {
    return Data(dtype, random_values(sequences * length * cols, name)).values();
  }
  AttentionShape shape(Range queries, Range keys) const {
    const float scale = 1.0f / std::sqrt(static_cast<float>(h.head_dim));
    return {sequences,  queries.length, keys.length,   h.heads,   h.kv_heads,
            h.head_dim, scale,          queries.first, keys.first};
  }
  /// The rows of a run, of `count` elements each.
  template <class T>
  std::vector<T> rows(const std::vector<T>& all, Index count, Range run) const {
    std::vector<T> result;
    for (Index s = 0; s < sequences; ++s) {
      const auto begin = all.begin() + (s * length + run.first) * count;
      result.insert(result.end(), begin, begin + run.length * count);
    }
    return result;
  }
  template <class T>
  void set_rows(std::vector<T>& all, Index count, Range run, const std::vector<T>& part) const {
    for (Index s = 0; s < sequences; ++s) {
      std::copy_n(part.begin() + s * run.length * count, run.length * count,
                  all.begin() + (s * length + run.first) * count);
    }
  }
};

/// What the device computes for a run of queries and one of keys.
struct Part {
  const Problem& problem;
  Range queries, keys;
  AttentionShape shape;
  std::vector<std::int32_t> starts;
  testing::Ints starts_there;
  Data q, k, v, dout, out, lse;

  Part(const Problem& p, Range queries_, Range keys_, DType out_type)
      : problem(p),
        queries(queries_),
        keys(keys_),
        shape(p.shape(queries, keys)),
        starts(p.rows(p.starts, 1, queries)),
        starts_there(starts),
        q(p.dtype, p.rows(p.q, p.q_cols(), queries)),
        k(p.dtype, p.rows(p.k, p.kv_cols(), keys)),
        v(p.dtype, p.rows(p.v, p.kv_cols(), keys)),
        dout(p.dtype, p.rows(p.dout, p.q_cols(), queries)),
        out(out_type, Values(q.values().size(), NAN)),
        lse(DType::f32, Values(static_cast<std::size_t>(p.sequences * queries.length * p.h.heads), NAN)) {}

  void forward(Device& device) {
    device.ops().attention_forward(shape, q.matrix(problem.q_cols()), k.matrix(problem.kv_cols()),
                                   v.matrix(problem.kv_cols()), starts_there, out.matrix(problem.q_cols()),
                                   lse.vector(), device.compute_stream());
    device.compute_stream().synchronize();
  }
  void backward(Device& device, Data& whole_out, Data& whole_lse, Data& dq, bool accumulate_dq, Data& dk,
                Data& dv, bool accumulate_dkv) {
    const Index q_cols = problem.q_cols(), kv_cols = problem.kv_cols();
    device.ops().attention_backward(shape, q.matrix(q_cols), k.matrix(kv_cols), v.matrix(kv_cols),
                                    whole_out.matrix(q_cols), whole_lse.vector(), starts_there,
                                    dout.matrix(q_cols), dq.matrix(q_cols), accumulate_dq, dk.matrix(kv_cols),
                                    dv.matrix(kv_cols), accumulate_dkv, device.compute_stream());
    device.compute_stream().synchronize();
  }
};

void add_to(Values& sum, const Values& x) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += x[i];
}

void compare_with_reference(const Problem& p, Range queries, Range keys, Device& device) {
  SCOPED_TRACE(::testing::Message() << queries.length << " queries from " << queries.first << ", "
                                    << keys.length << " keys from " << keys.first << ", heads " << p.h.heads
                                    << "/" << p.h.kv_heads << " x " << p.h.head_dim << ", "
                                    << name_of(p.dtype));
  Part part(p, queries, keys, p.dtype);
  part.forward(device);
  const Values q = part.q.values(), k = part.k.values(), v = part.v.values();
  const auto expected = reference::attention_forward(part.shape, q, k, v, part.starts);
  expect_near(part.out.values(), expected.out, out_tolerance(p.dtype), "out");
  const Values found_lse = part.lse.values();
  ASSERT_EQ(found_lse.size(), expected.log_sum_exp.size());
  for (std::size_t i = 0; i < found_lse.size(); ++i) {
    if (expected.log_sum_exp[i] == -HUGE_VAL) {
      EXPECT_EQ(found_lse[i], -HUGE_VAL) << "row " << i;
    } else {
      EXPECT_NEAR(found_lse[i], expected.log_sum_exp[i], 2e-6) << "row " << i;
    }
  }

  const Range all{0, p.length};
  const auto whole = reference::attention_forward(p.shape(queries, all), q, p.k, p.v, part.starts);
  Data whole_out(p.dtype, whole.out), whole_lse(DType::f32, whole.log_sum_exp);
  const auto gradients = reference::attention_backward(
      part.shape, q, k, v, {whole_out.values(), whole_lse.values()}, part.starts, part.dout.values());
  for (const DType gradient_type : std::set{p.dtype, DType::f32}) {
    for (const bool accumulate_dq : {false, true}) {
      const bool accumulate_dkv = !accumulate_dq;
      Data dq(gradient_type, random_values(std::ssize(q), "dq"));
      Data dk(gradient_type, random_values(std::ssize(k), "dk")), dv(gradient_type, dk.values());
      Values expected_dq = gradients.dq, expected_dk = gradients.dk, expected_dv = gradients.dv;
      if (accumulate_dq) add_to(expected_dq, dq.values());
      if (accumulate_dkv) add_to(expected_dk, dk.values());
      if (accumulate_dkv) add_to(expected_dv, dv.values());
      part.backward(device, whole_out, whole_lse, dq, accumulate_dq, dk, dv, accumulate_dkv);
      const double tolerance = gradient_tolerance(p.dtype, gradient_type);
      expect_near(dq.values(), expected_dq, tolerance, "dq");
      expect_near(dk.values(), expected_dk, tolerance, "dk");
      expect_near(dv.values(), expected_dv, tolerance, "dv");
    }
  }
}

constexpr std::pair<Range, Range> kRanges[] = {
    {{0, 5}, {7, 9}},      {{3, 40}, {20, 37}}, {{100, 17}, {5, 61}}, {{70, 1}, {70, 1}},
    {{70, 1}, {71, 1}},    {{10, 0}, {3, 4}},   {{10, 4}, {3, 0}},    {{64, 64}, {64, 64}},
    {{65, 3}, {64, 70}},   {{0, 140}, {63, 2}}, {{130, 9}, {0, 64}},  {{20, 30}, {47, 67}},
    {{128, 12}, {61, 70}}, {{0, 0}, {0, 0}},
};

TEST(AttentionParts, MatchTheReferenceForAnyTwoRuns) {
  for (const bool documents : {false, true}) {
    const auto device = device_with(documents ? 3 : 1);
    for (const auto& [queries, keys] : kRanges) {
      compare_with_reference({DType::f32, 2, 140, {4, 2, 8}, documents}, queries, keys, *device);
      if (testing::on_cpu() || documents)
        compare_with_reference({DType::f32, 1, 140, {3, 1, 5}, !documents}, queries, keys, *device);
    }
  }
}

TEST(AttentionParts, MatchTheReferenceInSixteenBits) {
  const auto device = device_with(2);
  for (const auto& [queries, keys] : kRanges) {
    for (const DType dtype : {DType::bf16, DType::f16})
      compare_with_reference({dtype, testing::on_cpu() ? 2 : 1, 140, {4, 2, 16}, true}, queries, keys,
                             *device);
  }
}

TEST(AttentionParts, WithoutVisibleKeysAreExactlyNothing) {
  const auto device = device_with(2);
  // Keys after the queries, keys of earlier documents, no keys.
  const Problem later(DType::f32, 2, 90, {4, 2, 12}, false);
  Problem earlier = later;
  for (std::int32_t& start : earlier.starts) start = 60;
  const std::tuple<const Problem*, Range, Range> cases[] = {
      {&later, {0, 30}, {30, 33}}, {&earlier, {60, 30}, {10, 50}}, {&later, {20, 7}, {20, 0}}};
  for (const auto& [problem, queries, keys] : cases) {
    Part part(*problem, queries, keys, DType::f32);
    part.forward(*device);
    for (const double x : part.out.values()) ASSERT_EQ(x, 0.0);
    for (const double x : part.lse.values()) ASSERT_EQ(x, -HUGE_VAL);
    // The rows see no key anywhere, as far as the gradients know.
    for (const bool accumulate : {false, true}) {
      const Data before_q(DType::f32, random_values(std::ssize(part.q.values()), "dq"));
      const Data before_k(DType::f32, random_values(std::ssize(part.k.values()), "dk"));
      Data dq = before_q, dk = before_k, dv = before_k;
      part.backward(*device, part.out, part.lse, dq, accumulate, dk, dv, accumulate);
      for (const auto& [found, before] :
           {std::pair{&dq, &before_q}, std::pair{&dk, &before_k}, std::pair{&dv, &before_k}}) {
        if (accumulate) {
          EXPECT_TRUE(found->same_bits(*before));
        } else {
          EXPECT_EQ(found->values(), Values(before->values().size(), 0.0));
        }
      }
    }
  }
}

/// Attention of whole sequences by ranks that hold chunks r and 2 cp - 1 - r of 2 cp, keys and values going
/// around a ring.
struct Zigzag {
  const Problem& p;
  Index ranks;
  Values out, lse, dq, dk, dv;

  Range chunk(Index index) const { return {index * p.length / (2 * ranks), p.length / (2 * ranks)}; }
  std::vector<Range> chunks(Index rank) const { return {chunk(rank), chunk(2 * ranks - 1 - rank)}; }

  Zigzag(const Problem& problem, Index cp, Device& device) : p(problem), ranks(cp) {
    const Index tokens = p.sequences * p.length;
    const auto zeros = [](Index size) { return Values(static_cast<std::size_t>(size), 0.0); };
    out = dq = zeros(tokens * p.q_cols());
    lse = zeros(tokens * p.h.heads);
    dk = dv = zeros(tokens * p.kv_cols());
    for (Index rank = 0; rank < ranks; ++rank) {
      for (const Range queries : chunks(rank)) attend(queries, rank, device);
    }
  }
  void attend(Range queries, Index rank, Device& device) {
    const Index count = p.sequences * queries.length;
    Data out_sum(DType::f32, count * p.q_cols());
    Data lse_sum(DType::f32, Values(static_cast<std::size_t>(count * p.h.heads), -HUGE_VAL));
    for_each_key_chunk(rank, [&](Range keys) {
      Part part(p, queries, keys, DType::f32);
      part.forward(device);
      device.ops().attention_merge(out_sum.matrix(p.q_cols()), lse_sum.vector(), part.out.matrix(p.q_cols()),
                                   part.lse.vector(), p.h.head_dim, device.compute_stream());
      device.compute_stream().synchronize();
    });
    p.set_rows(out, p.q_cols(), queries, out_sum.values());
    p.set_rows(lse, p.h.heads, queries, lse_sum.values());

    Data final_out(p.dtype, out_sum.values()), dq_sum(DType::f32, Values(out_sum.values().size(), NAN));
    bool first = true;
    for_each_key_chunk(rank, [&](Range keys) {
      Part part(p, queries, keys, DType::f32);
      Data dk_sum(DType::f32, p.rows(dk, p.kv_cols(), keys)),
          dv_sum(DType::f32, p.rows(dv, p.kv_cols(), keys));
      part.backward(device, final_out, lse_sum, dq_sum, !std::exchange(first, false), dk_sum, dv_sum, true);
      p.set_rows(dk, p.kv_cols(), keys, dk_sum.values());
      p.set_rows(dv, p.kv_cols(), keys, dv_sum.values());
    });
    p.set_rows(dq, p.q_cols(), queries, dq_sum.values());
  }
  template <class Work>
  void for_each_key_chunk(Index rank, const Work& work) const {
    for (Index step = 0; step < ranks; ++step) {
      for (const Range keys : chunks((rank + ranks - step) % ranks)) work(keys);
    }
  }
};

void compare_zigzag(const Problem& p, Index ranks) {
  SCOPED_TRACE(::testing::Message() << ranks << " ranks, " << p.length << " tokens, " << name_of(p.dtype));
  const auto device = device_with(2);
  const Zigzag found(p, ranks, *device);
  const Range all{0, p.length};
  const auto whole = reference::attention_forward(p.shape(all, all), p.q, p.k, p.v, p.starts);
  const auto gradients =
      reference::attention_backward(p.shape(all, all), p.q, p.k, p.v, whole, p.starts, p.dout);
  // Results are fp32 sums in both; in 16 bits the gradients feel the rounding of out.
  const double tolerance = p.dtype == DType::f32 ? 2e-5 : p.dtype == DType::bf16 ? 2e-2 : 3e-3;
  expect_near(found.out, whole.out, testing::on_cpu() ? 2e-6 : out_tolerance(p.dtype), "out");
  expect_near(found.lse, whole.log_sum_exp, 2e-6, "log_sum_exp");
  expect_near(found.dq, gradients.dq, tolerance, "dq");
  expect_near(found.dk, gradients.dk, tolerance, "dk");
  expect_near(found.dv, gradients.dv, tolerance, "dv");
}

TEST(AttentionParts, OfAZigzagCutAreTheWhole) {
  // All of them would take long where a GPU is emulated.
  for (const Index ranks : testing::on_cpu() ? std::vector<Index>{1, 2, 3, 4} : std::vector<Index>{2}) {
    for (const Index chunk : {1, 19}) {
      for (const bool documents : {false, true}) {
        compare_zigzag({DType::f32, 2, 2 * ranks * chunk, {4, 2, 8}, documents}, ranks);
      }
    }
    for (const DType dtype : {DType::bf16, DType::f16})
      compare_zigzag({dtype, 1, 2 * ranks * 21, {6, 2, 16}, true}, ranks);
  }
}

Data& merged(Data& out_sum, Data& lse_sum, Data& out, Data& lse, Index heads, Index head_dim, int threads) {
  const auto device = device_with(threads);
  device->ops().attention_merge(out_sum.matrix(heads * head_dim), lse_sum.vector(),
                                out.matrix(heads * head_dim), lse.vector(), head_dim,
                                device->compute_stream());
  device->compute_stream().synchronize();
  return out_sum;
}

TEST(AttentionMerge, MatchesTheReference) {
  for (const DType dtype : testing::kComputeTypes) {
    for (const Index tokens : {0, 1, 77}) {
      const Index heads = 3, head_dim = 21, rows = tokens * heads;
      Data out_sum(DType::f32, random_values(rows * head_dim, "a")),
          lse_sum(DType::f32, random_values(rows, "la", 4));
      Data out(dtype, random_values(rows * head_dim, "b")), lse(DType::f32, random_values(rows, "lb", 4));
      const auto expected = reference::attention_merge({out_sum.values(), lse_sum.values()},
                                                       {out.values(), lse.values()}, head_dim);
      Data again_out = out_sum, again_lse = lse_sum;
      expect_near(merged(out_sum, lse_sum, out, lse, heads, head_dim, 1).values(), expected.out, 1e-6, "out");
      expect_near(lse_sum.values(), expected.log_sum_exp, 1e-6, "log_sum_exp");
      merged(again_out, again_lse, out, lse, heads, head_dim, 3);
      EXPECT_TRUE(again_out.same_bits(out_sum) && again_lse.same_bits(lse_sum));
    }
  }
}

TEST(AttentionMerge, IsExactWhereASideSawNothing) {
  // Rows: both, only the sum, only the part, neither; far apart on either side.
  Data out_sum(DType::f32, Values{1, 3, 0, 0, 5, 6}), out(DType::f32, Values{2, 0, 7, 0, 8, 9});
  Data lse_sum(DType::f32, Values{1, 2, -HUGE_VAL, -HUGE_VAL, 1000, -1000});
  Data lse(DType::f32, Values{1, -HUGE_VAL, 3, -HUGE_VAL, -1000, 1000});
  merged(out_sum, lse_sum, out, lse, 1, 1, 1);
  EXPECT_EQ(out_sum.values(), (Values{1.5, 3, 7, 0, 5, 9}));
  EXPECT_FLOAT_EQ(static_cast<float>(lse_sum.values()[0]), 1 + std::log(2.0f));
  const Values found = lse_sum.values();
  EXPECT_EQ(Values(found.begin() + 1, found.end()), (Values{2, 3, -HUGE_VAL, 1000, 1000}));
}

TEST(AttentionMerge, ShowsNotANumberInsteadOfHidingIt) {
  for (const int side : {0, 1}) {
    Data out_sum(DType::f32, Values{1, 1}), out(DType::f32, Values{1, 1});
    Data lse_sum(DType::f32, Values{side == 0 ? NAN : 1, 1}), lse(DType::f32, Values{side == 1 ? NAN : 1, 1});
    merged(out_sum, lse_sum, out, lse, 1, 1, 1);
    EXPECT_TRUE(std::isnan(out_sum.values()[0]) && std::isnan(lse_sum.values()[0])) << side;
    EXPECT_EQ(out_sum.values()[1], 1.0);
  }
}

TEST(AttentionPartsBits, OfAQueryRunAreThoseOfTheWhole) {
  const auto device = device_with(2);
  for (const DType dtype : testing::kComputeTypes) {
    const Problem p(dtype, 2, 150, {4, 2, 16}, true);
    const Range all{0, p.length};
    Part whole(p, all, all, dtype);
    whole.forward(*device);
    for (const Range queries : {Range{0, 1}, Range{17, 40}, Range{64, 86}, Range{149, 1}}) {
      Part part(p, queries, all, dtype);
      part.forward(*device);
      EXPECT_EQ(part.out.values(), p.rows(whole.out.values(), p.q_cols(), queries));
      EXPECT_EQ(part.lse.values(), p.rows(whole.lse.values(), p.h.heads, queries));
    }
  }
}

TEST(AttentionPartsBits, DependOnTheKeysSeenOnly) {
  // Keys before the documents of the queries, and keys after the last query, may be missing.
  const auto device = device_with(2);
  for (const DType dtype : testing::kComputeTypes) {
    Problem p(dtype, 1, 180, {4, 2, 16}, false);
    for (Index i = 0; i < p.length; ++i)
      p.starts[static_cast<std::size_t>(i)] = i < 101 ? 0 : i < 140 ? 101 : 107;
    const Range all{0, p.length}, queries{141, 30};
    Part whole(p, queries, all, dtype);
    whole.forward(*device);
    for (const Range keys : {Range{107, 64}, Range{107, 73}, Range{60, 111}, Range{64, 116}}) {
      Part part(p, queries, keys, dtype);
      part.forward(*device);
      EXPECT_TRUE(part.out.same_bits(whole.out)) << keys.first;
      EXPECT_TRUE(part.lse.same_bits(whole.lse)) << keys.first;
    }
  }
}

TEST(AttentionPartsBits, OfGradientsAddedRunByRunAreThoseOfOneCall) {
  struct Case {
    DType dtype;
    int threads;
    std::vector<Range> runs;
  };
  const std::vector<Range> anywhere{{0, 64}, {64, 37}, {101, 99}}, sixteens{{0, 64}, {64, 48}, {112, 88}};
  std::vector<Case> cases{{DType::f32, 1, anywhere}, {DType::f32, 2, anywhere}};
  for (const DType dtype : {DType::bf16, DType::f16}) {
    // A product of tensor cores sums sixteen at once.
    for (const int threads : {1, 2, 5})
      cases.push_back({dtype, threads, testing::on_cpu() ? anywhere : sixteens});
  }
  for (const auto& [dtype, threads, runs] : cases) {
    if (!testing::on_cpu() && threads != 1) continue;
    const auto device = device_with(threads);
    const Problem p(dtype, 1, 200, {4, 2, 24}, true);
    const Range all{0, p.length};
    Part whole(p, all, all, dtype);
    whole.forward(*device);
    const Index tokens = p.sequences * p.length;
    Data dq(DType::f32, tokens * p.q_cols()), dk(DType::f32, tokens * p.kv_cols()), dv = dk;
    whole.backward(*device, whole.out, whole.lse, dq, false, dk, dv, false);

    Values dq_sum(dq.values().size(), 0.0), dk_sum(dk.values().size(), 0.0), dv_sum = dk_sum;
    for (const Range queries : runs) {
      Data out(dtype, p.rows(whole.out.values(), p.q_cols(), queries));
      Data lse(DType::f32, p.rows(whole.lse.values(), p.h.heads, queries));
      Data dq_part(DType::f32, std::ssize(out.values()));
      for (const Range keys : runs) {
        Part part(p, queries, keys, dtype);
        Data dk_part(DType::f32, p.rows(dk_sum, p.kv_cols(), keys)),
            dv_part(DType::f32, p.rows(dv_sum, p.kv_cols(), keys));
        part.backward(*device, out, lse, dq_part, true, dk_part, dv_part, true);
        p.set_rows(dk_sum, p.kv_cols(), keys, dk_part.values());
        p.set_rows(dv_sum, p.kv_cols(), keys, dv_part.values());
      }
      p.set_rows(dq_sum, p.q_cols(), queries, dq_part.values());
    }
    EXPECT_EQ(dq_sum, dq.values());
    EXPECT_EQ(dk_sum, dk.values());
    EXPECT_EQ(dv_sum, dv.values());
  }
}

TEST(AttentionPartsBits, OfGradientsSummedInTheOutputsAreThoseOfTwoPasses) {
  if (!testing::on_cpu()) GTEST_SKIP() << "two ways on the cpu";
  // Too many keys for the sums of a whole head to lie in a thread's scratch memory.
  const Problem p(DType::f32, 1, 8100, {1, 1, 128}, false);
  const Range queries{8050, 50}, keys{70, 8000}, all{0, p.length};
  Values first_q, first_k, first_v;
  for (const int threads : {1, 2}) {
    const auto device = device_with(threads);
    Part whole(p, queries, all, DType::f32), part(p, queries, keys, DType::f32);
    whole.forward(*device);
    Data dq(DType::f32, random_values(queries.length * p.q_cols(), "dq"));
    Data dk(DType::f32, random_values(keys.length * p.kv_cols(), "dk")), dv = dk;
    part.backward(*device, whole.out, whole.lse, dq, true, dk, dv, true);
    if (threads == 1) first_q = dq.values(), first_k = dk.values(), first_v = dv.values();
    EXPECT_TRUE(dq.values() == first_q && dk.values() == first_k && dv.values() == first_v) << threads;
  }
}

TEST(AttentionPartsBits, DoNotDependOnTheThreads) {
  if (!testing::on_cpu()) GTEST_SKIP() << "there are threads on the cpu";
  for (const auto& [dtype, gradient_type] :
       {std::pair{DType::bf16, DType::bf16}, {DType::bf16, DType::f32}, {DType::f16, DType::f16}}) {
    const Problem p(dtype, 1, 333, {6, 2, 24}, true);
    const Range queries{150, 183}, keys{37, 250}, all{0, p.length};
    Values first_q, first_k, first_v;
    for (const int threads : {1, 2, 3, 5}) {
      const auto device = device_with(threads);
      Part whole(p, queries, all, dtype), part(p, queries, keys, dtype);
      whole.forward(*device);
      Data dq(gradient_type, random_values(queries.length * p.q_cols(), "dq"));
      Data dk(gradient_type, random_values(keys.length * p.kv_cols(), "dk")), dv = dk;
      part.backward(*device, whole.out, whole.lse, dq, true, dk, dv, true);
      if (threads == 1) first_q = dq.values(), first_k = dk.values(), first_v = dv.values();
      EXPECT_TRUE(dq.values() == first_q && dk.values() == first_k && dv.values() == first_v) << threads;
    }
  }
}

}  // namespace
}  // namespace cartan::device
