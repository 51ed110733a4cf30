// The reference's gradients against central differences of its own forward functions, in double: every device
// is compared with the reference, so this is where the formulas themselves are checked.
#include "device/cpu/reference.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "device/ops_fixture.hpp"

namespace cartan::device {
namespace {

using testing::expect_close;
using testing::random_ids;
using testing::random_values;
using testing::Values;

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// d f / d x by central differences.
Values differences(Values x, const std::function<double(const Values&)>& f) {
  const double h = 1e-6;
  Values gradient;
  for (double& element : x) {
    const double saved = element;
    element = saved + h;
    const double above = f(x);
    element = saved - h;
    const double below = f(x);
    element = saved;
    gradient.push_back((above - below) / (2 * h));
  }
  return gradient;
}

void expect_gradient(const Values& found, const Values& x, const std::function<double(const Values&)>& f) {
  expect_close(found, differences(x, f), 1e-6, 1e-7);
}

TEST(Reference, EmbeddingGradient) {
  const auto ids = random_ids(6, 4, "ids");
  const Values table = random_values(4 * 3, "table"), dout = random_values(6 * 3, "dout");
  expect_gradient(reference::embedding_backward(ids, dout, 0, 4, 3), table,
                  [&](const Values& t) { return dot(reference::embedding_forward(ids, t, 0, 3), dout); });
}

TEST(Reference, RmsNormGradients) {
  const Values x = random_values(3 * 5, "x"), weight = random_values(5, "w"), dy = random_values(3 * 5, "dy");
  const auto g = reference::rmsnorm_backward(x, weight, 1e-3, dy);
  expect_gradient(g.dx, x,
                  [&](const Values& v) { return dot(reference::rmsnorm_forward(v, weight, 1e-3).y, dy); });
  expect_gradient(g.dweight, weight,
                  [&](const Values& v) { return dot(reference::rmsnorm_forward(x, v, 1e-3).y, dy); });
}

TEST(Reference, LinearGradients) {
  const Index n = 3, k = 4;
  const Values x = random_values(5 * k, "x"), w = random_values(n * k, "w"), bias = random_values(n, "bias"),
               dy = random_values(5 * n, "dy");
  const auto g = reference::linear_backward_weight(dy, x, n, k);
  expect_gradient(reference::linear_backward_input(dy, w, n), x,
                  [&](const Values& v) { return dot(reference::linear_forward(v, w, bias, k), dy); });
  expect_gradient(g.dw, w,
                  [&](const Values& v) { return dot(reference::linear_forward(x, v, bias, k), dy); });
  expect_gradient(g.dbias, bias,
                  [&](const Values& v) { return dot(reference::linear_forward(x, w, v, k), dy); });
}

TEST(Reference, RopeIsAnOrthogonalMap) {
  const Values x = random_values(3 * 12, "x"), angle = random_values(9 * 2, "angle");
  Values cosines, sines;
  for (const double a : angle) {
    cosines.push_back(std::cos(a));
    sines.push_back(std::sin(a));
  }
  const std::vector<std::int32_t> positions{8, 0, 3};
  const Values turned = reference::rope(x, 12, 6, positions, cosines, sines, 2, false);
  EXPECT_NEAR(dot(turned, turned), dot(x, x), 1e-12);
  expect_close(reference::rope(turned, 12, 6, positions, cosines, sines, 2, true), x, 0, 1e-14);
}

TEST(Reference, SwigluGradient) {
  const Values gate_up = random_values(3 * 8, "gate_up", 2), dy = random_values(3 * 4, "dy");
  expect_gradient(reference::swiglu_backward(gate_up, dy, 4), gate_up,
                  [&](const Values& v) { return dot(reference::swiglu_forward(v, 4), dy); });
}

TEST(Reference, CrossEntropyGradient) {
  const Values logits = random_values(4 * 5, "logits", 2);
  const std::vector<std::int32_t> targets{0, 4, -1, 2};
  expect_gradient(reference::cross_entropy(logits, targets).dlogits, logits, [&](const Values& v) {
    double loss = 0;
    for (const double row : reference::cross_entropy(v, targets).row_loss) loss += row;
    return loss;
  });
}

TEST(Reference, CrossEntropyOfEqualLogitsIsTheLogarithmOfTheirNumber) {
  const std::vector<std::int32_t> targets{3};
  EXPECT_NEAR(reference::cross_entropy(Values(8, 1.5), targets).row_loss[0], std::log(8.0), 1e-14);
}

TEST(Reference, AttentionGradients) {
  const AttentionShape shape{2, 5, 5, 4, 2, 3, 0.7f};
  const std::vector<std::int32_t> starts{0, 0, 0, 3, 3, 0, 1, 1, 1, 4};
  const Values q = random_values(10 * 12, "q"), k = random_values(10 * 6, "k"),
               v = random_values(10 * 6, "v"), dout = random_values(10 * 12, "dout");
  const auto g = reference::attention_backward(
      shape, q, k, v, reference::attention_forward(shape, q, k, v, starts), starts, dout);
  expect_gradient(g.dq, q, [&](const Values& x) {
    return dot(reference::attention_forward(shape, x, k, v, starts).out, dout);
  });
  expect_gradient(g.dk, k, [&](const Values& x) {
    return dot(reference::attention_forward(shape, q, x, v, starts).out, dout);
  });
  expect_gradient(g.dv, v, [&](const Values& x) {
    return dot(reference::attention_forward(shape, q, k, x, starts).out, dout);
  });
}

TEST(Reference, GradientsOfTwoRunsOfKeysAddUpToThoseOfAll) {
  const AttentionShape all{1, 5, 5, 2, 1, 3, 0.7f}, front{1, 5, 2, 2, 1, 3, 0.7f},
      back{1, 5, 3, 2, 1, 3, 0.7f, 0, 2};
  const std::vector<std::int32_t> starts{0, 0, 1, 1, 4};
  const Values q = random_values(5 * 6, "q"), k = random_values(5 * 3, "k"), v = random_values(5 * 3, "v"),
               dout = random_values(5 * 6, "dout");
  const auto part = [](const Values& x, Index begin, Index end) {
    return Values(x.begin() + begin * 3, x.begin() + end * 3);
  };
  const auto whole = reference::attention_forward(all, q, k, v, starts);
  const auto a = reference::attention_forward(front, q, part(k, 0, 2), part(v, 0, 2), starts);
  const auto b = reference::attention_forward(back, q, part(k, 2, 5), part(v, 2, 5), starts);
  EXPECT_EQ(b.log_sum_exp[0], -HUGE_VAL);
  const auto merged = reference::attention_merge(a, b, 3);
  expect_close(merged.out, whole.out, 1e-12, 1e-12);
  expect_close(merged.log_sum_exp, whole.log_sum_exp, 1e-12, 1e-12);

  const auto g = reference::attention_backward(all, q, k, v, whole, starts, dout);
  auto sum = reference::attention_backward(front, q, part(k, 0, 2), part(v, 0, 2), whole, starts, dout);
  const auto rest = reference::attention_backward(back, q, part(k, 2, 5), part(v, 2, 5), whole, starts, dout);
  for (std::size_t i = 0; i < sum.dq.size(); ++i) sum.dq[i] += rest.dq[i];
  sum.dk.insert(sum.dk.end(), rest.dk.begin(), rest.dk.end());
  sum.dv.insert(sum.dv.end(), rest.dv.begin(), rest.dv.end());
  expect_close(sum.dq, g.dq, 1e-12, 1e-12);
  expect_close(sum.dk, g.dk, 1e-12, 1e-12);
  expect_close(sum.dv, g.dv, 1e-12, 1e-12);
}

TEST(Reference, AttentionOfTheFirstTokenIsItsValue) {
  const AttentionShape shape{1, 1, 1, 2, 1, 3, 1.0f};
  const std::vector<std::int32_t> starts{0};
  const Values v{1, 2, 3};
  EXPECT_EQ(reference::attention_forward(shape, random_values(6, "q"), random_values(3, "k"), v, starts).out,
            (Values{1, 2, 3, 1, 2, 3}));
}

TEST(Reference, AdamWFirstStepMovesByTheLearningRate) {
  reference::AdamWState state{{1, 1}, {0, 0}, {0, 0}};
  reference::adamw(state, {0.5, -2}, {0.1f, 0.9f, 0.99f, 0.0f, 0.0f, 0.1f, 0.01f, 1});
  EXPECT_NEAR(state.master[0], 0.9, 1e-6);
  EXPECT_NEAR(state.master[1], 1.1, 1e-6);
}

}  // namespace
}  // namespace cartan::device
