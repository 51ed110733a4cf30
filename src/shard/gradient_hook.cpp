#include "shard/gradient_hook.hpp"

#include "cartan/core/narrow.hpp"

namespace cartan::shard {

void check(const HookConfig& config, Problems& problems) {
  if (config.gradient != "none" && config.gradient != "powersgd" && config.gradient != "topk")
    problems.add("hook.gradient = {}: use none, powersgd or topk", config.gradient);
  if (config.rank < 1) problems.add("hook.rank = {}: must be at least 1", config.rank);
  if (!(config.fraction > 0 && config.fraction <= 1))
    problems.add("hook.fraction = {}: must be above 0 and at most 1", config.fraction);
  if (config.warmup < 0) problems.add("hook.warmup = {}: must not be negative", config.warmup);
}

std::vector<HookedPart> hooked_parts(const FlatLayout& layout) {
  CARTAN_ASSERT(layout.gradient_life() == GradientLife::step);
  std::vector<HookedPart> parts;
  for (const FlatUnit& unit : layout.units())
    if (unit.gradient.elements > 0) parts.push_back({&unit.gradient, unit.spec});
  if (layout.tied_gradient()) parts.push_back({&*layout.tied_gradient(), layout.units().front().spec});
  return parts;
}

device::Buffer make_residuals(const ExchangePlace& place) {
  device::Device& device = place.state.device();
  const Index elements = place.state.layout().gradient_elements();
  device::Buffer residuals = device.allocate(narrow<std::size_t>(elements) * sizeof(float),
                                             device::MemoryKind::communication, "gradients not sent yet");
  device.ops().fill_zero({residuals.data(), DType::f32, elements}, device.compute_stream());
  return residuals;
}

std::unique_ptr<GradientHook> make_hook(const HookConfig& config, const ExchangePlace& place) {
  if (config.gradient == "powersgd") return make_powersgd(place, config.rank);
  return config.gradient == "topk" ? make_topk(place, config.fraction) : nullptr;
}

}  // namespace cartan::shard
