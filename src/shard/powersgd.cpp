// A gradient matrix M [n, m] travels as two factors: P = M Q, summed over ranks and made orthonormal, and
// Q = M^T P, summed; the sum of the M is then taken to be P Q^T. Q starts the next step: over the steps this
// is a power iteration. Factors are stored transposed, as rows.
//
// What a rank keeps back is M - P (M^T P)^T with its own M: summed over ranks, what P Q^T leaves out.
#include <algorithm>
#include <array>
#include <map>

#include "cartan/core/narrow.hpp"
#include "cartan/core/random.hpp"
#include "shard/gradient_hook.hpp"

namespace cartan::shard {
namespace {

using device::Matrix;
using device::Vector;

Matrix as_row(Vector v) { return {v.data, v.dtype, 1, v.size, v.size}; }

class PowerSgd : public GradientHook {
 public:
  PowerSgd(const ExchangePlace& place, Index rank)
      : place_(place), ranks_(place.plane.size()), rank_(rank), residuals_(make_residuals(place)) {
    Index most_left = 0, right = 0;
    for (const HookedPart& hooked : hooked_parts(place.state.layout())) {
      Plan plan = plan_part(hooked, right);
      right += plan.right.end - plan.right.begin;
      most_left = std::max(most_left, plan.left);
      plans_.emplace(hooked.part->begin, std::move(plan));
    }
    const auto allocate = [&](Index elements, const char* label) {
      return place.plane.allocate_exchange(place.state.device(),
                                           narrow<std::size_t>(elements) * sizeof(float),
                                           device::MemoryKind::communication, label);
    };
    left_ = allocate(most_left, "left factors of gradients");
    right_ = allocate(right, "right factors of gradients");
    start_right_factors();
  }

  device::Event exchange(const GradientPart& part) override {
    const Plan& plan = plans_.at(part.begin);
    device::Ops& ops = place_.state.device().ops();
    device::Stream& stream = place_.stream;
    const device::SequenceShape rows{1, rank_};
    place_.fold_own(part.begin, part.elements, place_.all_leaves());
    for (const Factored& m : plan.matrices) {
      const Index elements = m.rows * m.cols;
      ops.add({residual(m).data, DType::f32, elements}, place_.whole(m.begin, elements), stream);
      ops.linear_forward(right(m), residual(m), {}, left(m), false, rows, stream);
    }
    for (const Whole& w : plan.rest)
      ops.copy(as_row(place_.whole(w.begin, w.count)), as_row(left_at(w.left, w.count)), stream);
    sum(left_.as<float>(), plan.left);
    for (const Factored& m : plan.matrices) {
      const Index elements = m.rows * m.cols;
      ops.orthonormalise_rows(left(m), stream);
      ops.linear_backward_input(left(m), residual(m), right(m), false, rows, stream);
      multiply(m);
      ops.subtract({residual(m).data, DType::f32, elements}, place_.whole(m.begin, elements), stream);
    }
    for (const Whole& w : plan.rest)
      ops.copy(as_row(left_at(w.left, w.count)), as_row(place_.whole(w.begin, w.count)), stream);
    sum(right_.as<float>() + plan.right.begin, plan.right.end - plan.right.begin);
    for (const Factored& m : plan.matrices) multiply(m);
    return stream.record();
  }

 private:
  /// A matrix that travels as factors.
  struct Factored {
    std::string name;
    Index begin = 0, rows = 0, cols = 0;  ///< in the gradients
    Index left = 0, right = 0;            ///< first floats of its factors
    std::array<float*, 1> slot{};         ///< where the gradient is
  };
  /// Elements that travel as they are, beside the left factors.
  struct Whole {
    Index begin = 0, count = 0, left = 0;
  };
  struct Plan {
    std::vector<Factored> matrices;
    std::vector<Whole> rest;
    Index left = 0;         ///< floats of the left factors and the rest
    LeafRange right{0, 0};  ///< of the right factors
  };

  Plan plan_part(const HookedPart& hooked, Index right) const {
    Plan plan;
    plan.right = {right, right};
    for (const model::ParameterSpec& p : hooked.spec->parameters) {
      if (!p.trained) break;
      const Index begin = hooked.part->begin + p.offset;
      if (p.part.size() != 2 || rank_ * (p.part[0] + p.part[1]) >= p.elements()) {
        if (!plan.rest.empty() && plan.rest.back().begin + plan.rest.back().count == begin)
          plan.rest.back().count += p.elements();
        else if (p.elements() > 0)
          plan.rest.push_back({begin, p.elements(), 0});
        continue;
      }
      plan.matrices.push_back({p.name,
                               begin,
                               p.part[0],
                               p.part[1],
                               plan.left,
                               plan.right.end,
                               {place_.state.slots()[0] + begin}});
      plan.left += rank_ * p.part[0];
      plan.right.end += rank_ * p.part[1];
    }
    for (Whole& w : plan.rest) {
      w.left = plan.left;
      plan.left += w.count;
    }
    return plan;
  }

  /// Random numbers, the same on all ranks of the plane.
  void start_right_factors() {
    device::Device& device = place_.state.device();
    std::vector<float> host(right_.size_bytes() / sizeof(float));
    for (const auto& [begin, plan] : plans_)
      for (const Factored& m : plan.matrices)
        RandomStream(0, m.name).fill_normal(
            0, 0.0, 1.0,
            std::span(host).subspan(narrow<std::size_t>(m.right), narrow<std::size_t>(rank_ * m.cols)));
    device.copy_in(right_.data(), host.data(), right_.size_bytes(), device.compute_stream());
  }

  Vector left_at(Index begin, Index count) const { return {left_.as<float>() + begin, DType::f32, count}; }
  Matrix left(const Factored& m) const {
    return device::as_matrix(left_.as<float>() + m.left, DType::f32, rank_, m.rows);
  }
  Matrix right(const Factored& m) const {
    return device::as_matrix(right_.as<float>() + m.right, DType::f32, rank_, m.cols);
  }
  Matrix residual(const Factored& m) const {
    return device::as_matrix(residuals_.as<float>() + m.begin, DType::f32, m.rows, m.cols);
  }

  /// The gradient becomes P Q^T.
  void multiply(const Factored& m) {
    place_.state.device().ops().linear_backward_weight(left(m), right(m), {1, rank_}, {m.slot, 0, &kOneLeaf},
                                                       {}, place_.stream);
  }

  /// Over all ranks, the same bits on each.
  void sum(float* values, Index count) {
    if (count > 0) place_.plane.all_reduce({&ranks_, {values}, count}, place_.stream);
  }

  static inline const FoldPlan kOneLeaf{0, 1, 1, {0}};

  ExchangePlace place_;
  CanonicalTree ranks_;
  Index rank_;
  std::map<Index, Plan> plans_;  ///< by begin of the part
  device::Buffer residuals_, left_, right_;
};

}  // namespace

std::unique_ptr<GradientHook> make_powersgd(const ExchangePlace& place, Index rank) {
  return std::make_unique<PowerSgd>(place, rank);
}

}  // namespace cartan::shard
