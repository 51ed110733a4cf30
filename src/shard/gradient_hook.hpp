// Compressed gradients: what travels instead of whole gradients, once the warm-up is over. What a rank does
// not send stays with it and is added to its next gradient, so that nothing is lost, only late.
#pragma once

#include <memory>
#include <vector>

#include "cartan/shard/hook_config.hpp"
#include "shard/gradient_sum.hpp"

namespace cartan::shard {

class GradientHook {
 public:
  virtual ~GradientHook() = default;
  /// A part, complete on this rank, becomes in the first slot what the ranks agree on as its sum: the same
  /// bits on all. Collective.
  virtual device::Event exchange(const GradientPart& part) = 0;
};

/// A part and the parameters that lie in it.
struct HookedPart {
  const GradientPart* part = nullptr;
  const model::UnitSpec* spec = nullptr;
};
std::vector<HookedPart> hooked_parts(const FlatLayout& layout);

/// What the rank has not sent yet: as long as the gradients, zero at first.
device::Buffer make_residuals(const ExchangePlace& place);

/// Thin factors of the matrices. Source: Vogels, Karimireddy and Jaggi 2019, arXiv:1905.13727. Collective.
std::unique_ptr<GradientHook> make_powersgd(const ExchangePlace& place, Index rank);
/// The largest elements. Source: Stich, Cordonnier and Jaggi 2018, arXiv:1809.07599. Collective.
std::unique_ptr<GradientHook> make_topk(const ExchangePlace& place, double fraction);
/// None where nothing is to be compressed. Collective.
std::unique_ptr<GradientHook> make_hook(const HookConfig& config, const ExchangePlace& place);

}  // namespace cartan::shard
