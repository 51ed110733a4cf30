// Gradients that travel with 16 bits or compressed: what arrives, what is kept for later, what is sent.
#include <gtest/gtest.h>

#include <cmath>

#include "cartan/core/hash.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/core/random.hpp"
#include "cartan/shard/gradient_reducer.hpp"
#include "support/mpi_session.hpp"
#include "support/small_model.hpp"
#include "support/test_device.hpp"

namespace cartan::shard {
namespace {

using Values = std::vector<double>;

/// What a rank brings: the value of an element of one of its slots.
using Summand = std::function<float(int rank, std::size_t slot, Index element)>;

/// Normal numbers.
Summand random_summand(int step, Index elements) {
  auto all = std::make_shared<std::map<std::pair<int, std::size_t>, std::vector<float>>>();
  return [=](int rank, std::size_t slot, Index element) {
    std::vector<float>& values = (*all)[{rank, slot}];
    if (values.empty()) {
      values.resize(narrow<std::size_t>(elements));
      RandomStream(narrow<std::uint64_t>(step), fmt::format("{} {}", rank, slot))
          .fill_normal(0, 0, 1, values);
    }
    return values[narrow<std::size_t>(element)];
  };
}
/// Small whole numbers, which every order and bf16 add up exactly.
float whole_number(int rank, std::size_t slot, Index element) {
  return static_cast<float>((7 * element + 3 * rank + 5 * narrow<Index>(slot)) % 17 - 8);
}

/// A plane of all ranks with gradients and a reducer. A rank computes three sequences, or its part of those
/// of a pair of ranks, one micro-batch; with transient gradients three micro-batches of one.
class Plane {
 public:
  explicit Plane(const ReducerOptions& options, int stage = 0)
      : session_(testing::session()),
        ranks_(session_.world_size()),
        mesh_(session_, comm::MeshShape{1, ranks_, 1, 1}, cartan::testing::test_device_kind()),
        parts_(options.parts),
        tree_(Index{3} * ranks_ / parts_),
        config_(cartan::testing::small_model(3, true)),
        layout_(config_, units_of_stages(config_, {{0, 5}}),
                stage >= 2 ? GradientLife::transient : GradientLife::step,
                {stage, session_.rank(), ranks_, ranks_}),
        device_(cartan::testing::make_test_device(1)),
        stream_(session_.thread_multiple() ? device_->make_stream("reduction") : nullptr),
        state_(layout_, {DType::f32, 3, 4}, *device_, {&plane(), &plane(), &stream()}),
        reducer_(state_, plane(), nullptr, with_batch(options), stream()) {}

  comm::Communicator& plane() { return mesh_.data_plane(); }
  int ranks() const { return ranks_; }
  const FlatLayout& layout() const { return layout_; }
  Index elements() const { return layout_.gradient_elements(); }
  bool is_transient() const { return layout_.gradient_life() == GradientLife::transient; }

  /// One step; afterwards gradient() has its result.
  void exchange(Index update, const Summand& summand) {
    reducer_.begin_step(update);
    const int micro_batches = is_transient() ? 3 : 1;
    for (int m = 0; m < micro_batches; ++m) {
      const LeafRange leaves =
          is_transient() ? LeafRange{m * holders(), (m + 1) * holders()} : LeafRange{0, tree_.leaves()};
      for (std::size_t unit = layout_.units().size(); unit-- > 0;) {
        const FlatUnit& flat = layout_.units()[unit];
        fill(flat.gradient, summand, m);
        if (unit + 1 == layout_.units().size()) fill(*layout_.tied_gradient(), summand, m);
        reducer_.unit_ready(unit, leaves, m + 1 == micro_batches);
      }
    }
    reducer_.finish();
    plane().barrier();
  }

  /// visit(element of what `truth` tells, reduced value) of what this rank owns.
  template <class Visit>
  void for_each_owned(const Visit& visit) {
    const auto of = [&](const GradientPart& part, Index first) {
      const Index count = part.owned.end - part.owned.begin;
      if (count == 0) return;
      const auto values = cartan::testing::download<float>(
          *device_, state_.gradient(part, part.owned.begin, count).data, narrow<std::size_t>(count));
      for (Index i = 0; i < count; ++i) visit(first + part.owned.begin + i, values[narrow<std::size_t>(i)]);
    };
    for (const FlatUnit& unit : layout_.units()) of(unit.gradient, unit.parameter_begin);
    of(*layout_.tied_gradient(), layout_.parameter_elements());
  }
  /// Elements that these visits number.
  Index numbers() const { return layout_.parameter_elements() + layout_.units().front().gradient.elements; }

  /// The exact sum of an element over all ranks and their slots.
  double truth(const Summand& summand, Index element) const {
    double sum = 0;
    for (int rank = 0; rank < ranks_; ++rank)
      for (std::size_t slot = 0; slot < summands(rank); ++slot)
        sum += static_cast<double>(summand(rank, slot, element));
    return sum;
  }

  /// Whether all ranks have the same gradients, bit by bit.
  bool is_same_everywhere() {
    const auto values =
        cartan::testing::download<float>(*device_, state_.slots()[0], narrow<std::size_t>(elements()));
    const auto value = static_cast<std::int64_t>(hash_bytes(std::as_bytes(std::span(values))) >> 1);
    return plane().max(value) == -plane().max(-value);
  }

  /// Bytes of the calls of a verb in the last step.
  template <class Step>
  std::size_t sent(std::string_view verb, const Step& step) {
    const std::uint64_t before = plane().calls();
    step();
    std::size_t bytes = 0;
    for (const comm::CallRecord& call : plane().recent_calls())
      if (call.sequence >= before && call.verb == verb) bytes += call.bytes;
    return bytes;
  }

 private:
  Index holders() const { return ranks_ / parts_; }
  ReducerOptions with_batch(ReducerOptions options) const {
    options.global_batch = tree_.leaves();
    return options;
  }
  device::Stream& stream() { return stream_ ? *stream_ : device_->compute_stream(); }

  /// Sums that a rank has: nodes of its stack, or micro-batches.
  std::size_t summands(int rank) const {
    if (is_transient()) return 3;
    const LeafRange own = leaf_range(tree_.leaves(), rank / parts_, holders());
    return tree_.stack_of_range(own.begin, own.end).size();
  }

  void fill(const GradientPart& part, const Summand& summand, int micro_batch) {
    state_.wait_until_free(part);
    const bool is_tied = part.begin == layout_.tied_gradient()->begin;
    Index first = layout_.parameter_elements();
    for (const FlatUnit& unit : layout_.units())
      if (!is_tied && unit.gradient.name == part.name) first = unit.parameter_begin;
    const std::size_t slots = is_transient() ? 1 : summands(session_.rank());
    std::vector<float> values(narrow<std::size_t>(part.elements));
    for (std::size_t slot = 0; slot < slots; ++slot) {
      for (Index i = 0; i < part.elements; ++i)
        values[narrow<std::size_t>(i)] =
            summand(session_.rank(), is_transient() ? narrow<std::size_t>(micro_batch) : slot, first + i);
      device_->copy_in(state_.slots()[slot] + part.begin, values.data(), values.size() * sizeof(float),
                       device_->compute_stream());
    }
  }

  comm::Session& session_;
  int ranks_;
  comm::Mesh mesh_;
  int parts_;
  CanonicalTree tree_;
  model::ModelConfig config_;
  FlatLayout layout_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  FlatState state_;
  GradientReducer reducer_;
};

/// Result of one step, in the order of for_each_owned.
std::vector<float> result_of(Plane& plane, Index update, const Summand& summand) {
  plane.exchange(update, summand);
  std::vector<float> values;
  plane.for_each_owned([&](Index, float value) { values.push_back(value); });
  return values;
}

/// Largest distance of the result of the last step from the exact sum.
double error_of(Plane& plane, const Summand& summand) {
  double largest = 0;
  plane.for_each_owned([&](Index element, float value) {
    largest = std::max(largest, std::abs(static_cast<double>(value) - plane.truth(summand, element)));
  });
  return largest;
}

ReducerOptions with_hook(const char* gradient, int rank = 2, double fraction = 0.05) {
  ReducerOptions options;
  options.bucket_elements = 3000;
  options.hook = {gradient, rank, fraction, 0};
  return options;
}

TEST(GradientHooks, LeaveTheWarmUpBitsAlone) {
  for (const char* hook : {"powersgd", "topk"})
    for (const int stage : {0, 1}) {
      ReducerOptions options = with_hook(hook), plain = options;
      options.hook.warmup = 2;
      plain.hook.gradient = "none";
      Plane hooked(options, stage), summed(plain, stage);
      for (Index update = 1; update <= 3; ++update) {
        const Summand summand = random_summand(narrow<int>(update), hooked.numbers());
        const bool is_equal = result_of(hooked, update, summand) == result_of(summed, update, summand);
        EXPECT_EQ(is_equal, update <= 2 || hooked.ranks() == 1)
            << hook << ", stage " << stage << ", update " << update;
      }
    }
}

TEST(GradientHooks, OnOneRankNothingIsCompressedOrSent) {
  for (const char* hook : {"powersgd", "topk"}) {
    Plane plane(with_hook(hook));
    if (plane.ranks() > 1) continue;
    const Summand summand = random_summand(1, plane.numbers());
    EXPECT_EQ(plane.sent("all_gather", [&] { plane.exchange(1, whole_number); }), 0u);
    EXPECT_EQ(error_of(plane, whole_number), 0);
  }
}

TEST(PowerSgd, WithManyRowsIsTheSum) {
  Plane plane(with_hook("powersgd", 1000));
  plane.exchange(1, whole_number);
  EXPECT_EQ(error_of(plane, whole_number), 0);
}

/// The part of each matrix that has rank 2, of every parameter alike: a function of row and column.
Summand low_rank(const FlatLayout& layout) {
  std::vector<float> values(
      narrow<std::size_t>(layout.parameter_elements() + layout.units().front().gradient.elements));
  const auto fill = [&](const model::UnitSpec& spec, Index first) {
    for (const model::ParameterSpec& p : spec.parameters) {
      const Index cols = p.part.back();
      for (Index i = 0; i < p.elements(); ++i) {
        const auto row = static_cast<float>(i / cols), col = static_cast<float>(i % cols);
        values[narrow<std::size_t>(first + p.offset + i)] =
            std::sin(row) * std::cos(2 * col + 1) + std::cos(3 * row) * std::sin(col + 2);
      }
    }
  };
  for (const FlatUnit& unit : layout.units()) fill(*unit.spec, unit.parameter_begin);
  fill(*layout.units().front().spec, layout.parameter_elements());
  return [values](int rank, std::size_t slot, Index element) {
    return values[narrow<std::size_t>(element)] * static_cast<float>(rank + 1) * static_cast<float>(slot + 1);
  };
}

TEST(PowerSgd, OfMatricesOfLowRankIsTheSum) {
  Plane plane(with_hook("powersgd", 2));
  const Summand summand = low_rank(plane.layout());
  double largest = 0;
  for (Index i = 0; i < plane.numbers(); ++i) largest = std::max(largest, std::abs(plane.truth(summand, i)));
  for (Index update = 1; update <= 3; ++update) {
    plane.exchange(update, summand);
    EXPECT_LT(error_of(plane, summand), 1e-4 * largest) << "update " << update;
  }
}

TEST(PowerSgd, SendsTwoFactorsOfEachMatrixAndTheRestWhole) {
  for (const int rank : {1, 2, 5, 1000}) {
    Plane plane(with_hook("powersgd", rank));
    if (plane.ranks() == 1) return;
    Index floats = 0;
    const auto count = [&](const model::UnitSpec& spec) {
      for (const model::ParameterSpec& p : spec.parameters) {
        const Index factors = p.part.size() == 2 ? rank * (p.part[0] + p.part[1]) : p.elements();
        floats += std::min(factors, p.elements());
      }
    };
    for (const FlatUnit& unit : plane.layout().units()) count(*unit.spec);
    count(*plane.layout().units().front().spec);  // the head's gradient of the tied matrix
    const Summand summand = random_summand(1, plane.numbers());
    EXPECT_EQ(plane.sent("all_reduce", [&] { plane.exchange(1, summand); }),
              sizeof(float) * narrow<std::size_t>(floats))
        << "rank " << rank;
  }
}

/// Applied gradients of a few steps, and of as many without any gradient as it takes to send what was kept.
TEST(GradientHooks, LoseNothingOverTime) {
  for (const char* hook : {"powersgd", "topk"})
    for (const int stage : {0, 1})
      for (const int parts : {1, 2}) {
        ReducerOptions options = with_hook(hook);
        if (testing::session().world_size() % parts != 0) continue;
        options.parts = parts;
        if (!cartan::testing::on_cpu() && stage + parts != 2)
          continue;  // for the order of streams, one of each
        Plane plane(options, stage);
        Values applied(narrow<std::size_t>(plane.numbers()), 0.0), expected = applied;
        const auto distance = [&] {
          double largest = 0;
          plane.for_each_owned([&](Index i, float) {
            const auto at = narrow<std::size_t>(i);
            largest = std::max(largest, std::abs(applied[at] - expected[at]));
          });
          return largest;
        };
        const auto step = [&](Index update, const Summand& summand) {
          plane.exchange(update, summand);
          plane.for_each_owned(
              [&](Index i, float value) { applied[narrow<std::size_t>(i)] += static_cast<double>(value); });
          if (stage == 0) {
            EXPECT_TRUE(plane.is_same_everywhere()) << hook << ", update " << update;
          }
        };
        Index update = 0;
        while (update < 3) {
          const Summand summand = random_summand(narrow<int>(++update), plane.numbers());
          step(update, summand);
          for (Index i = 0; i < plane.numbers(); ++i)
            expected[narrow<std::size_t>(i)] += plane.truth(summand, i);
        }
        if (plane.ranks() > 1) {
          EXPECT_GT(distance(), 1.0) << hook << " sends everything at once";
        }
        while (update < 33) step(++update, [](int, std::size_t, Index) { return 0.0f; });
        EXPECT_LT(distance(), 2e-4) << hook << ", stage " << stage << ", parts " << parts;
      }
}

TEST(TopK, OfAllElementsIsTheSum) {
  Plane plane(with_hook("topk", 2, 1.0));
  for (Index update = 1; update <= 2; ++update) {
    plane.exchange(update, whole_number);
    EXPECT_EQ(error_of(plane, whole_number), 0);
  }
}

TEST(TopK, SendsPairsOfTheLargestElements) {
  for (const double fraction : {1e-9, 0.01, 0.3}) {
    Plane plane(with_hook("topk", 2, fraction));
    if (plane.ranks() == 1) return;
    std::size_t pairs = 0;
    const auto count = [&](Index elements) {
      pairs += narrow<std::size_t>(std::max(1LL, std::llround(fraction * static_cast<double>(elements))));
    };
    for (const FlatUnit& unit : plane.layout().units()) count(unit.spec->elements);
    count(plane.layout().units().front().spec->elements);
    const Summand summand = random_summand(1, plane.numbers());
    EXPECT_EQ(plane.sent("all_gather", [&] { plane.exchange(1, summand); }), 8 * pairs);
    std::size_t arrived = 0;
    plane.for_each_owned([&](Index, float value) { arrived += value != 0 ? 1 : 0; });
    EXPECT_GE(arrived, pairs);
    EXPECT_LE(arrived, pairs * narrow<std::size_t>(plane.ranks()));
    EXPECT_EQ(plane.sent("all_reduce", [&] { plane.exchange(2, summand); }), 0u);
  }
}

TEST(SixteenBitReduction, AddsUpInFp32WhatWasRoundedOnce) {
  for (const DType wire : {DType::bf16, DType::f16})
    for (const int stage : {0, 1, 2, 3})
      for (const int parts : {1, 2}) {
        ReducerOptions options;
        options.bucket_elements = 3000;
        options.wire = wire;
        if (testing::session().world_size() % parts != 0) continue;
        options.parts = parts;
        Plane plane(options, stage);
        plane.exchange(1, whole_number);
        EXPECT_EQ(error_of(plane, whole_number), 0) << "whole numbers, stage " << stage;
        for (int round = 0; round < 2; ++round) {
          const Summand summand = random_summand(round, plane.numbers());
          plane.exchange(2 + round, summand);
          // A summand is rounded by at most half a unit in the last place.
          const double half_unit = wire == DType::bf16 ? 0x1p-8 : 0x1p-11;
          int wrong = 0;
          plane.for_each_owned([&](Index element, float value) {
            double size = 0;
            for (int rank = 0; rank < plane.ranks(); ++rank)
              for (std::size_t slot = 0; slot < 3; ++slot)
                size += std::abs(static_cast<double>(summand(rank, slot, element)));
            wrong += std::abs(static_cast<double>(value) - plane.truth(summand, element)) <=
                             1.01 * half_unit * size
                         ? 0
                         : 1;
          });
          EXPECT_EQ(wrong, 0) << "stage " << stage;
          const double error = error_of(plane, summand);
          if (plane.ranks() > 1) {
            EXPECT_GT(error, half_unit / 8) << "nothing is rounded";
          } else {
            EXPECT_LT(error, 1e-6) << "one rank sends nothing";
          }
          if (stage == 0) {
            EXPECT_TRUE(plane.is_same_everywhere());
          }
        }
      }
}

TEST(SixteenBitReduction, SendsHalfTheBytesToTheOwners) {
  ReducerOptions options;
  options.bucket_elements = Index{1} << 20;
  options.wire = DType::bf16;
  for (const int stage : {0, 1}) {
    Plane plane(options, stage);
    if (plane.ranks() == 1) return;
    const std::size_t bytes = plane.sent("all_to_all", [&] { plane.exchange(1, whole_number); });
    const auto elements = narrow<std::size_t>(plane.elements());
    EXPECT_GE(bytes, 2 * elements);
    // Each rank's chunk of a call is rounded up to a block.
    const std::size_t calls = stage == 0 ? 1 : plane.layout().units().size() + 1;
    EXPECT_LE(bytes, 2 * (elements + calls * narrow<std::size_t>(plane.ranks() * device::kSumBlock)));
    EXPECT_EQ(plane.sent("reduce_scatter", [&] { plane.exchange(2, whole_number); }), 0u);
  }
}

}  // namespace
}  // namespace cartan::shard
