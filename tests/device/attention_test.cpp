// Attention against a plain implementation in double precision, and what must hold bit for bit: any number of
// threads, sequences alone or together, decoding with a cache, foreign documents, instruction sets.
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "cartan/core/error.hpp"
#include "device/cpu/context.hpp"
#include "device/ops_fixture.hpp"

namespace cartan::device {
namespace {

using Doubles = std::vector<double>;
using testing::device_with;

/// Rows of fp32, bf16 or fp16 with a stride; what lies between the rows is a sentinel that must survive.
class Rows {
 public:
  Rows(DType dtype, Index rows, Index cols, Index gap)
      : bytes_(static_cast<std::size_t>(rows * (cols + gap)) * size_of(dtype), std::byte{0x5a}),
        view_{nullptr, dtype, rows, cols, cols + gap} {}

  Index rows() const { return view_.rows; }
  Index cols() const { return view_.cols; }
  double get(Index row, Index col) const {
    const auto at = static_cast<std::size_t>(row * view_.stride + col);
    if (view_.dtype == DType::f32) return reinterpret_cast<const float*>(bytes_.data())[at];
    if (view_.dtype == DType::f16) return to_float(reinterpret_cast<const Float16*>(bytes_.data())[at]);
    return to_float(reinterpret_cast<const BFloat16*>(bytes_.data())[at]);
  }
  void set(Index row, Index col, double value) {
    const auto at = static_cast<std::size_t>(row * view_.stride + col);
    if (view_.dtype == DType::f32) {
      reinterpret_cast<float*>(bytes_.data())[at] = static_cast<float>(value);
    } else if (view_.dtype == DType::f16) {
      reinterpret_cast<Float16*>(bytes_.data())[at] = to_float16(static_cast<float>(value));
    } else {
      reinterpret_cast<BFloat16*>(bytes_.data())[at] = to_bfloat16(static_cast<float>(value));
    }
  }
  Doubles values() const {
    Doubles all;
    for (Index row = 0; row < view_.rows; ++row) {
      for (Index col = 0; col < view_.cols; ++col) all.push_back(get(row, col));
    }
    return all;
  }
  bool gaps_untouched() const {
    const std::size_t element = size_of(view_.dtype);
    for (Index row = 0; row < view_.rows; ++row) {
      for (std::size_t byte = static_cast<std::size_t>(row * view_.stride + view_.cols) * element;
           byte < static_cast<std::size_t>((row + 1) * view_.stride) * element; ++byte) {
        if (bytes_[byte] != std::byte{0x5a}) return false;
      }
    }
    return true;
  }
  /// The bytes of rows [begin, end), gaps included.
  std::string bits(Index begin, Index end) const {
    const std::size_t row_bytes = static_cast<std::size_t>(view_.stride) * size_of(view_.dtype);
    return {reinterpret_cast<const char*>(bytes_.data()) + static_cast<std::size_t>(begin) * row_bytes,
            static_cast<std::size_t>(end - begin) * row_bytes};
  }
  std::string bits() const { return bits(0, view_.rows); }

  /// A copy in the memory of the device under test.
  class OnDevice {
   public:
    explicit OnDevice(const Rows& rows) : bytes_(rows.bytes_), view_(rows.view_) {
      view_.data = bytes_.data();
    }
    Matrix view() const { return view_; }
    void store(Rows& rows) const { rows.bytes_ = bytes_.host(); }

   private:
    testing::Bytes bytes_;
    Matrix view_;
  };
  OnDevice on_device() const { return OnDevice(*this); }

 private:
  std::vector<std::byte> bytes_;
  Matrix view_;
};

/// Elements between the rows of the operands: off every alignment, or such that rows can be moved in packs.
struct Gaps {
  Index q = 3, k = 5, v = 1;
};

/// The operands of one call.
struct Problem {
  AttentionShape shape;
  std::vector<std::int32_t> document_start;
  Rows q, k, v, out, dout, dq, dk, dv;
  std::vector<float> log_sum_exp;

  Problem(AttentionShape s, DType dtype, Gaps gaps = {})
      : shape(s),
        document_start(static_cast<std::size_t>(s.sequences * s.q_length), 0),
        q(dtype, s.sequences * s.q_length, s.heads * s.head_dim, gaps.q),
        k(dtype, s.sequences * s.k_length, s.kv_heads * s.head_dim, gaps.k),
        v(dtype, s.sequences * s.k_length, s.kv_heads * s.head_dim, gaps.v),
        out(dtype, s.sequences * s.q_length, s.heads * s.head_dim, 0),
        dout(q),
        dq(q),
        dk(k),
        dv(v),
        log_sum_exp(static_cast<std::size_t>(s.sequences * s.q_length * s.heads)) {
    std::uint64_t stream = 0;
    for (Rows* rows : {&q, &k, &v, &dout}) fill(*rows, stream++);
  }

  static void fill(Rows& rows, std::uint64_t stream);

  void forward(Device& device) {
    const testing::Ints starts(document_start);
    const auto q_ = q.on_device(), k_ = k.on_device(), v_ = v.on_device(), out_ = out.on_device();
    const testing::Array<float> lse(log_sum_exp);
    device.ops().attention_forward(shape, q_.view(), k_.view(), v_.view(), starts, out_.view(),
                                   {lse.data(), DType::f32, std::ssize(log_sum_exp)},
                                   device.compute_stream());
    device.compute_stream().synchronize();
    out_.store(out);
    log_sum_exp = lse.host();
  }
  void backward(Device& device) {
    const testing::Ints starts(document_start);
    const auto q_ = q.on_device(), k_ = k.on_device(), v_ = v.on_device(), out_ = out.on_device();
    const auto dout_ = dout.on_device(), dq_ = dq.on_device(), dk_ = dk.on_device(), dv_ = dv.on_device();
    const testing::Array<float> lse(log_sum_exp);
    device.ops().attention_backward(shape, q_.view(), k_.view(), v_.view(), out_.view(),
                                    {lse.data(), DType::f32, std::ssize(log_sum_exp)}, starts, dout_.view(),
                                    dq_.view(), false, dk_.view(), dv_.view(), false,
                                    device.compute_stream());
    device.compute_stream().synchronize();
    dq_.store(dq);
    dk_.store(dk);
    dv_.store(dv);
  }
  /// Documents of irregular lengths: starts wherever (position * 7 + sequence) % 31 == 0.
  void scatter_documents() {
    for (Index s = 0; s < shape.sequences; ++s) {
      std::int32_t start = 0;
      for (Index p = 0; p < shape.k_length; ++p) {
        if ((p * 7 + s) % 31 == 0) start = static_cast<std::int32_t>(p);
        const Index query = p - shape.q_first;
        if (query >= 0) document_start[static_cast<std::size_t>(s * shape.q_length + query)] = start;
      }
    }
  }
  void slide_window(Index width) {
    for (Index token = 0; token < shape.sequences * shape.q_length; ++token) {
      const Index position = shape.q_first + token % shape.q_length;
      document_start[static_cast<std::size_t>(token)] =
          static_cast<std::int32_t>(std::max<Index>(position - width + 1, 0));
    }
  }
};

/// Keys that a query of a sliding window sees.
constexpr Index kWindow = 45;

/// Uniform numbers of variance 1.
void Problem::fill(Rows& rows, std::uint64_t stream) {
  const RandomStream random(7, stream);
  std::uint64_t position = 0;
  for (Index row = 0; row < rows.rows(); ++row) {
    for (Index col = 0; col < rows.cols(); ++col) {
      rows.set(row, col, (random.uniform(position++) - 0.5) * std::sqrt(12.0));
    }
  }
}

/// Plain attention in double precision: every score is computed where it is needed.
struct Reference {
  AttentionShape shape;
  std::vector<std::int32_t> document_start;
  Doubles q, k, v, dout;
  Doubles out, log_sum_exp, dq, dk, dv;

  explicit Reference(const Problem& problem)
      : shape(problem.shape),
        document_start(problem.document_start),
        q(problem.q.values()),
        k(problem.k.values()),
        v(problem.v.values()),
        dout(problem.dout.values()) {}

  /// Calls body(token, head, first element of q, keys' first elements in order of position).
  void for_each_query(
      const std::function<void(Index, Index, std::size_t, const std::vector<std::size_t>&)>& body) const {
    for (Index token = 0; token < shape.sequences * shape.q_length; ++token) {
      const Index sequence = token / shape.q_length;
      const Index position = shape.q_first + token % shape.q_length;
      for (Index head = 0; head < shape.heads; ++head) {
        const Index kv_head = head / (shape.heads / shape.kv_heads);
        std::vector<std::size_t> keys;
        for (Index j = document_start[static_cast<std::size_t>(token)]; j <= position; ++j) {
          const Index row = (sequence * shape.k_length + j) * shape.kv_heads + kv_head;
          keys.push_back(static_cast<std::size_t>(row * shape.head_dim));
        }
        body(token, head, static_cast<std::size_t>((token * shape.heads + head) * shape.head_dim), keys);
      }
    }
  }
  double dot(const Doubles& a, std::size_t at_a, const Doubles& b, std::size_t at_b) const {
    double sum = 0;
    for (std::size_t c = 0; c < static_cast<std::size_t>(shape.head_dim); ++c)
      sum += a[at_a + c] * b[at_b + c];
    return sum;
  }
  void add(Doubles& y, std::size_t at_y, double factor, const Doubles& x, std::size_t at_x) const {
    for (std::size_t c = 0; c < static_cast<std::size_t>(shape.head_dim); ++c)
      y[at_y + c] += factor * x[at_x + c];
  }
  /// log(sum(exp(scores))), and the scores become probabilities.
  Doubles probabilities(std::size_t at_q, const std::vector<std::size_t>& keys, double& lse) const {
    Doubles p;
    double maximum = -INFINITY, sum = 0;
    for (const std::size_t key : keys) {
      p.push_back(static_cast<double>(shape.scale) * dot(q, at_q, k, key));
      maximum = std::max(maximum, p.back());
    }
    for (const double score : p) sum += std::exp(score - maximum);
    lse = maximum + std::log(sum);
    for (double& score : p) score = std::exp(score - lse);
    return p;
  }
  void forward() {
    out.assign(q.size(), 0);
    log_sum_exp.assign(static_cast<std::size_t>(shape.sequences * shape.q_length * shape.heads), 0);
    for_each_query([&](Index token, Index head, std::size_t row, const std::vector<std::size_t>& keys) {
      const Doubles p =
          probabilities(row, keys, log_sum_exp[static_cast<std::size_t>(token * shape.heads + head)]);
      for (std::size_t j = 0; j < keys.size(); ++j) add(out, row, p[j], v, keys[j]);
    });
  }
  void backward() {
    dq.assign(q.size(), 0);
    dk.assign(k.size(), 0);
    dv.assign(v.size(), 0);
    const double scale = static_cast<double>(shape.scale);
    for_each_query([&](Index, Index, std::size_t row, const std::vector<std::size_t>& keys) {
      double lse = 0;
      const Doubles p = probabilities(row, keys, lse);
      const double delta = dot(dout, row, out, row);
      for (std::size_t j = 0; j < keys.size(); ++j) {
        const double ds = scale * p[j] * (dot(dout, row, v, keys[j]) - delta);
        add(dq, row, ds, k, keys[j]);
        add(dk, keys[j], ds, q, row);
        add(dv, keys[j], p[j], dout, row);
      }
    });
  }
  /// sum(out * dout): the gradients are those of this number.
  double loss() {
    forward();
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
    return sum;
  }
};

/// |a - b| <= tolerance * (1 + |b|) everywhere.
void expect_near(const Doubles& a, const Doubles& b, double tolerance, const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  double worst = 0;
  std::size_t where = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(a[i] - b[i]) / (1 + std::abs(b[i]));
    if (!(error <= worst)) worst = error, where = i;
    if (std::isnan(error)) break;
  }
  EXPECT_LE(worst, tolerance) << what << "[" << where << "] is " << a[where] << ", expected " << b[where];
}

/// The last q_length of k_length positions.
AttentionShape make_shape(Index sequences, Index q_length, Index k_length, Index heads, Index kv_heads,
                          Index head_dim) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  return {sequences, q_length, k_length, heads, kv_heads, head_dim, scale, k_length - q_length};
}

/// With 16 bits the cpu rounds results only; tensor cores take P and dS rounded too, whose errors add up like
/// the numbers that they weigh.
double out_tolerance(DType dtype) {
  if (dtype == DType::f32) return 2e-6;
  return testing::on_cpu() ? 1.02 * testing::epsilon(dtype) : 2 * testing::epsilon(dtype);
}
double gradient_tolerance(DType dtype) {
  if (dtype == DType::f32) return 2e-5;
  return testing::on_cpu() ? 1.28 * testing::epsilon(dtype) : 3 * testing::epsilon(dtype);
}

enum class Documents { one, scattered, window };

void compare_with_reference(AttentionShape shape, DType dtype, Documents documents, int threads,
                            Gaps gaps = {}) {
  SCOPED_TRACE(::testing::Message() << shape.sequences << " sequences, " << shape.q_length << " of "
                                    << shape.k_length << ", heads " << shape.heads << "/" << shape.kv_heads
                                    << " x " << shape.head_dim << ", " << name_of(dtype)
                                    << (documents == Documents::one ? "" : ", documents"));
  const auto device = device_with(threads);
  Problem problem(shape, dtype, gaps);
  if (documents == Documents::scattered) problem.scatter_documents();
  if (documents == Documents::window) problem.slide_window(kWindow);
  Reference reference(problem);
  reference.forward();
  problem.forward(*device);
  expect_near(problem.out.values(), reference.out, out_tolerance(dtype), "out");
  expect_near({problem.log_sum_exp.begin(), problem.log_sum_exp.end()}, reference.log_sum_exp, 1e-6,
              "log_sum_exp");
  if (shape.q_length != shape.k_length) return;

  reference.out = problem.out.values();  // what a training step hands over, rounded
  reference.backward();
  problem.backward(*device);
  const double tolerance = gradient_tolerance(dtype),
               group = static_cast<double>(shape.heads / shape.kv_heads);
  // The errors of a group's heads are independent.
  const double of_group = dtype == DType::f32 ? tolerance : tolerance * std::sqrt(group);
  expect_near(problem.dq.values(), reference.dq, tolerance, "dq");
  expect_near(problem.dk.values(), reference.dk, of_group, "dk");
  expect_near(problem.dv.values(), reference.dv, of_group, "dv");
  for (const Rows* rows : {&problem.q, &problem.k, &problem.v, &problem.dq, &problem.dk, &problem.dv}) {
    EXPECT_TRUE(rows->gaps_untouched());
  }
}

TEST(Attention, MatchesDoublePrecisionForEveryHeadDimension) {
  const Index sequences = testing::on_cpu() ? 2 : 1;
  for (const Index head_dim : {1, 5, 16, 24, 32, 64, 80, 128})
    compare_with_reference(make_shape(sequences, 67, 67, 2 * sequences, 2, head_dim), DType::f32,
                           Documents::one, 2);
  compare_with_reference(make_shape(1, 35, 35, 2, 1, 203), DType::f32, Documents::one, 2);
  compare_with_reference(make_shape(1, 35, 35, 1, 1, 256), DType::f32, Documents::one, 2);
}

TEST(Attention, MatchesDoublePrecisionForEveryHeadDimensionInSixteenBits) {
  for (const Index head_dim : {1, 5, 16, 32, 33, 64, 65, 80, 96, 127, 128, 129, 200, 256}) {
    const DType dtype = head_dim % 3 == 0 ? DType::f16 : DType::bf16;
    compare_with_reference(make_shape(1, 67, 67, 1, 1, head_dim), dtype, Documents::one, 2);
  }
}

TEST(Attention, MatchesDoublePrecisionForEveryLength) {
  for (const Index length : {1, 2, 7, 31, 32, 33, 64, 65, 128, 257}) {
    compare_with_reference(make_shape(1, length, length, 4, 2, 24), DType::f32, Documents::one, 1);
    compare_with_reference(make_shape(2, length, length, 3, 3, 16), DType::f32, Documents::scattered, 2);
  }
}

TEST(Attention, MatchesDoublePrecisionForEveryLengthInSixteenBits) {
  for (const Index length : {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200}) {
    const DType dtype = length % 2 == 0 ? DType::f16 : DType::bf16;
    compare_with_reference(make_shape(1, length, length, 1, 1, 16), dtype, Documents::one, 1);
    if (length % 2 == 1)
      compare_with_reference(make_shape(1, length, length, 3, 1, 40), dtype, Documents::scattered, 2);
  }
}

TEST(Attention, MatchesDoublePrecisionForEveryGroup) {
  for (const Index heads : {1, 2, 3, 5, 7, 49}) {
    compare_with_reference(make_shape(1, 40, 40, heads, 1, 16), DType::f32, Documents::scattered, 2);
    compare_with_reference(make_shape(1, 40, 40, heads, 1, 16), DType::bf16, Documents::scattered, 2);
  }
}

TEST(Attention, MatchesDoublePrecisionInSixteenBits) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    compare_with_reference(make_shape(2, 130, 130, 4, 2, 32), dtype, Documents::one, 2);
    compare_with_reference(make_shape(1, 75, 75, 6, 2, 24), dtype, Documents::scattered, 1);
    compare_with_reference(make_shape(2, 3, 75, 6, 2, 24), dtype, Documents::scattered, 1);
  }
}

TEST(Attention, MatchesDoublePrecisionForTheLastQueriesOfManyKeys) {
  for (const Index queries : {1, 2, 17, 64}) {
    compare_with_reference(make_shape(2, queries, 130, 4, 2, 16), DType::f32, Documents::one, 2);
    compare_with_reference(make_shape(1, queries, 201, 4, 1, 32), DType::f32, Documents::scattered, 2);
    compare_with_reference(make_shape(1, queries, 201, 4, 1, 32), DType::f16, Documents::scattered, 2);
  }
}

TEST(Attention, MatchesDoublePrecisionInASlidingWindow) {
  // The first visible key rises with every query.
  for (const DType dtype : testing::kComputeTypes) {
    compare_with_reference(make_shape(1, 190, 190, 2, 1, 24), dtype, Documents::window, 2);
    compare_with_reference(make_shape(2, 9, 150, 2, 2, 16), dtype, Documents::window, 2);
  }
}

/// For operands whose rows start anywhere, and for rows that can be moved in packs.
constexpr Gaps kPackedGaps{8, 16, 24};

TEST(Attention, MatchesDoublePrecisionForAlignedRows) {
  for (const DType dtype : testing::kComputeTypes)
    compare_with_reference(make_shape(1, 77, 77, 4, 2, 40), dtype, Documents::scattered, 2, kPackedGaps);
}

TEST(Attention, AcceptsNothing) {
  const auto device = device_with(2);
  for (const AttentionShape& shape : {make_shape(0, 5, 5, 2, 1, 8), make_shape(3, 0, 0, 2, 1, 8)}) {
    Problem problem(shape, DType::f32);
    problem.forward(*device);
    problem.backward(*device);
    EXPECT_TRUE(problem.out.values().empty());
  }
}

TEST(Attention, KeepsScoresFarApart) {
  // Scores of several thousand: only differences to the largest one may be exponentiated.
  const auto device = device_with(1);
  Problem problem(make_shape(1, 150, 150, 2, 1, 16), DType::f32);
  for (Index row = 0; row < 150; ++row) {
    for (Index col = 0; col < 16; ++col) problem.k.set(row, col, problem.k.get(row, col) * 1000.0);
  }
  Reference reference(problem);
  reference.forward();
  problem.forward(*device);
  expect_near(problem.out.values(), reference.out, 2e-3, "out");  // scores carry 2^-24 * 4000
  expect_near({problem.log_sum_exp.begin(), problem.log_sum_exp.end()}, reference.log_sum_exp, 1e-6,
              "log_sum_exp");
}

TEST(Attention, ShowsNotANumberInsteadOfHidingIt) {
  // Of V it may also show where the key is not seen, in rows whose last key is in its block.
  for (const DType dtype : testing::kComputeTypes) {
    for (int operand = 0; operand < 3; ++operand) {
      const auto device = device_with(1);
      Problem problem(make_shape(1, 100, 100, 2, 1, 16), dtype);
      Rows& poisoned = operand == 0 ? problem.q : operand == 1 ? problem.k : problem.v;
      poisoned.set(70, 3, NAN);
      problem.forward(*device);
      EXPECT_TRUE(std::isnan(problem.out.get(70, 3))) << operand;
      EXPECT_FALSE(std::isnan(problem.out.get(10, 3))) << operand;
    }
  }
}

TEST(Attention, GradientsOfTheReferenceAreItsFiniteDifferences) {
  Problem problem(make_shape(2, 9, 9, 4, 2, 6), DType::f32);
  problem.scatter_documents();
  Reference reference(problem);
  reference.forward();
  reference.backward();
  const auto check = [&](Doubles Reference::*operand, const Doubles& gradient) {
    for (std::size_t i = 0; i < gradient.size(); i += 5) {
      Reference moved = reference;
      const double step = 1e-5;
      (moved.*operand)[i] += step;
      const double above = moved.loss();
      (moved.*operand)[i] -= 2 * step;
      const double below = moved.loss();
      EXPECT_NEAR(gradient[i], (above - below) / (2 * step), 1e-8) << i;
    }
  };
  check(&Reference::q, reference.dq);
  check(&Reference::k, reference.dk);
  check(&Reference::v, reference.dv);
}

std::string all_bits(Problem& problem, Device& device) {
  problem.forward(device);
  problem.backward(device);
  std::string bits(reinterpret_cast<const char*>(problem.log_sum_exp.data()), problem.log_sum_exp.size() * 4);
  for (const Rows* rows : {&problem.out, &problem.dq, &problem.dk, &problem.dv}) bits += rows->bits();
  return bits;
}

TEST(AttentionBits, DoNotDependOnTheAlignmentOfRows) {
  const auto device = device_with(2);
  for (const DType dtype : testing::kComputeTypes) {
    Problem odd(make_shape(1, 70, 70, 2, 1, 40), dtype), packed(odd.shape, dtype, kPackedGaps);
    all_bits(odd, *device);
    all_bits(packed, *device);
    EXPECT_EQ(odd.out.values(), packed.out.values());
    EXPECT_EQ(odd.dq.values(), packed.dq.values());
    EXPECT_EQ(odd.dk.values(), packed.dk.values());
    EXPECT_EQ(odd.dv.values(), packed.dv.values());
  }
}

TEST(AttentionBits, DoNotDependOnTheThreads) {
  if (!testing::on_cpu()) GTEST_SKIP() << "there are threads on the cpu";
  // 2 kv heads of one sequence on 1 and 2 threads are whole tasks; 3, 5 threads take two passes.
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    std::string first;
    for (const int threads : {1, 2, 3, 5}) {
      const auto device = device_with(threads);
      Problem problem(make_shape(1, 333, 333, 6, 2, 24), dtype);
      problem.scatter_documents();
      const std::string bits = all_bits(problem, *device);
      if (first.empty()) first = bits;
      EXPECT_TRUE(bits == first) << threads << " threads, " << name_of(dtype);
    }
  }
}

TEST(AttentionBits, OfGradientsSummedInTheOutputsAreThoseOfTwoPasses) {
  if (!testing::on_cpu()) GTEST_SKIP() << "two ways on the cpu";
  // Too long for the sums of a whole head to lie in scratch; short documents keep it quick.
  const AttentionShape shape = make_shape(1, 8000, 8000, 1, 1, 128);
  ASSERT_GT(2 * shape.k_length * shape.head_dim * 4, static_cast<Index>(cpu::kScratchBytes));
  std::string first;
  for (const int threads : {1, 2}) {
    const auto device = device_with(threads);
    Problem problem(shape, DType::f32);
    problem.scatter_documents();
    const std::string bits = all_bits(problem, *device);
    if (first.empty()) first = bits;
    EXPECT_TRUE(bits == first) << threads << " threads";
  }
}

TEST(AttentionBits, AreThoseOfEachSequenceAlone) {
  for (const DType dtype : testing::kComputeTypes) {
    const auto device = device_with(2);
    const Index length = 75;
    Problem together(make_shape(3, length, length, 2, 1, 16), dtype);
    together.scatter_documents();
    all_bits(together, *device);
    for (Index s = 0; s < 3; ++s) {
      Problem alone(make_shape(1, length, length, 2, 1, 16), dtype);
      for (Index row = 0; row < length; ++row) {
        alone.document_start[static_cast<std::size_t>(row)] =
            together.document_start[static_cast<std::size_t>(s * length + row)];
        for (auto [from, to] : {std::pair{&together.q, &alone.q}, std::pair{&together.k, &alone.k},
                                std::pair{&together.v, &alone.v}, std::pair{&together.dout, &alone.dout}}) {
          for (Index c = 0; c < to->cols(); ++c) to->set(row, c, from->get(s * length + row, c));
        }
      }
      all_bits(alone, *device);
      const Index begin = s * length, end = begin + length;
      EXPECT_TRUE(alone.out.bits() == together.out.bits(begin, end)) << s;
      EXPECT_TRUE(alone.dq.bits() == together.dq.bits(begin, end)) << s;
      EXPECT_TRUE(alone.dk.bits() == together.dk.bits(begin, end)) << s;
      EXPECT_TRUE(alone.dv.bits() == together.dv.bits(begin, end)) << s;
    }
  }
}

TEST(AttentionBits, OfDecodingAreThoseOfTheFullPass) {
  for (const DType dtype : testing::kComputeTypes) {
    const auto device = device_with(2);
    const Index length = 150;
    Problem full(make_shape(1, length, length, 4, 2, 32), dtype);
    full.scatter_documents();
    full.forward(*device);
    for (const Index queries : {1, 5, 60}) {
      Problem last(make_shape(1, queries, length, 4, 2, 32), dtype);
      last.scatter_documents();
      for (Index row = 0; row < queries; ++row) {
        for (Index c = 0; c < last.q.cols(); ++c) last.q.set(row, c, full.q.get(length - queries + row, c));
      }
      last.forward(*device);
      EXPECT_TRUE(last.out.bits() == full.out.bits(length - queries, length)) << queries;
    }
  }
}

TEST(AttentionBits, FeelNothingOfOtherDocuments) {
  for (const DType dtype : testing::kComputeTypes) {
    const auto device = device_with(2);
    const Index length = 200, begin = 70, end = 133;  // off every block; three documents
    const auto make = [&] {
      Problem problem(make_shape(1, length, length, 2, 1, 16), dtype);
      for (Index i = begin; i < length; ++i) {
        problem.document_start[static_cast<std::size_t>(i)] =
            static_cast<std::int32_t>(i < end ? begin : end);
      }
      return problem;
    };
    Problem before = make(), after = make();
    all_bits(before, *device);
    for (Index row = 0; row < length; ++row) {
      if (row >= begin && row < end) continue;
      for (Rows* rows : {&after.q, &after.k, &after.v, &after.dout}) {
        for (Index c = 0; c < rows->cols(); ++c) rows->set(row, c, 40.0 * rows->get(row, c) + 7.0);
      }
    }
    all_bits(after, *device);
    EXPECT_TRUE(before.out.bits(begin, end) == after.out.bits(begin, end));
    EXPECT_TRUE(before.dq.bits(begin, end) == after.dq.bits(begin, end));
    EXPECT_TRUE(before.dk.bits(begin, end) == after.dk.bits(begin, end));
    EXPECT_TRUE(before.dv.bits(begin, end) == after.dv.bits(begin, end));
    EXPECT_FALSE(before.out.bits() == after.out.bits());
  }
}

/// Restores the processor's own instruction sets.
class InstructionSets {
 public:
  explicit InstructionSets(std::int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  ~InstructionSets() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  InstructionSets(const InstructionSets&) = delete;
  InstructionSets& operator=(const InstructionSets&) = delete;
};

TEST(Attention, IsRightOnOldProcessorsToo) {
  if (!testing::on_cpu()) GTEST_SKIP() << "of the cpu";
  const std::int64_t supported = hwy::SupportedTargets();
  for (const std::int64_t target : {HWY_AVX2, HWY_SSE4, HWY_SCALAR}) {
    if (target != HWY_SCALAR && (supported & target) == 0) continue;
    SCOPED_TRACE(hwy::TargetName(target));
    const InstructionSets sets(target | HWY_SCALAR);
    compare_with_reference(make_shape(1, 67, 67, 4, 2, 24), DType::f32, Documents::scattered, 2);
    compare_with_reference(make_shape(1, 67, 67, 4, 2, 24), DType::bf16, Documents::scattered, 2);
    compare_with_reference(make_shape(1, 67, 67, 4, 2, 24), DType::f16, Documents::scattered, 2);
  }
}

TEST(AttentionBits, OfAvx2AreThoseOfAvx512) {
  if (!testing::on_cpu()) GTEST_SKIP() << "of the cpu";
  if ((hwy::SupportedTargets() & HWY_AVX3) == 0) GTEST_SKIP() << "no AVX-512 here";
  const auto device = device_with(1);
  Problem wide(make_shape(1, 131, 131, 4, 2, 40), DType::f32), narrow = wide;
  const std::string bits = all_bits(wide, *device);
  const InstructionSets sets(HWY_AVX2 | HWY_SCALAR);
  EXPECT_TRUE(all_bits(narrow, *device) == bits);
}

TEST(Attention, NamesADocumentThatStartsAfterItsQuery) {
  if (!testing::on_cpu()) GTEST_SKIP() << "a GPU does not read them on the host";
  const auto device = device_with(1);
  Problem problem(make_shape(2, 10, 10, 2, 1, 8), DType::f32);
  problem.document_start[14] = 5;
  try {
    problem.forward(*device);
    FAIL() << "accepted";
  } catch (const InternalError& error) {
    EXPECT_STREQ(error.what(), "attention: query 4 of sequence 1 stands at 4, but its document starts at 5");
  }
}

}  // namespace
}  // namespace cartan::device
