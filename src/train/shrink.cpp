// A configuration at toy size.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "cartan/core/narrow.hpp"
#include "cartan/core/text.hpp"
#include "cartan/model/adapters.hpp"
#include "cartan/model/block.hpp"
#include "cartan/model/context_group.hpp"
#include "cartan/model/parameters.hpp"
#include "cartan/train/verify.hpp"

namespace cartan::train {
namespace {

// Odd where no axis forbids it, so that parts differ in size. hidden = kHeadDim * 5 has no meaning beyond
// that it is no power of two.
constexpr Index kHidden = 40, kHeadDim = 8, kFfn = 53, kVocabulary = 101, kSequence = 33;
constexpr Index kMostListedLayers = 64, kMicroBatches = 8, kPower = 16;
// Slower angles hardly turn in a toy's sequence: the gradient of a key's bias, which softmax sees only
// through the rotation, would be rounding there, and AdamW makes that as large as any step.
constexpr double kHighestTheta = 100;
// Between the wavelengths of that base, so that scaling has all its three cases.
constexpr Index kOriginalLength = 100;
// Shorter than a part of the sequence, and than a block of attention.
constexpr Index kWindow = 7;
constexpr double kBucketMb = 0.02, kHighestRate = 1e-2;

/// What decides how places of tensor and context parallelism share key/value heads.
struct HeadSplit {
  bool is_possible = false;
  bool shares_over_tp = false, shares_over_cp = false;
  friend bool operator==(const HeadSplit&, const HeadSplit&) = default;
};

HeadSplit split_of(const model::ModelConfig& model, Index sequence, const Config& config) {
  const Index tp = config.mesh.columns(), cp = config.mesh.context();
  HeadSplit split;
  split.shares_over_tp = model.kv_heads % tp != 0;
  if (model.heads % tp != 0 || (split.shares_over_tp && tp % model.kv_heads != 0)) return split;
  split.shares_over_cp = model::part_of(model, {0, config.mesh.columns()}).kv_heads % cp != 0;
  split.is_possible =
      model::why_not(model, sequence, config.mesh.cp, config.mesh.columns(),
                     model::context_exchange_from_name(config.context.exchange), config.mesh.rows)
          .empty();
  return split;
}

/// As few heads, in the same groups, as the axes share in the same way; two key/value heads where there are.
void shrink_heads(model::ModelConfig& toy, Index sequence, const Config& config) {
  const Index group = config.model.heads / config.model.kv_heads;
  const HeadSplit wanted = split_of(config.model, config.data.seq, config);
  for (Index kv_heads = std::min<Index>(2, config.model.kv_heads); kv_heads < config.model.kv_heads;
       ++kv_heads) {
    toy.kv_heads = kv_heads;
    toy.heads = kv_heads * group;
    if (split_of(toy, sequence, config) == wanted) return;
  }
  toy.kv_heads = config.model.kv_heads;
  toy.heads = config.model.heads;
}

Index shrink_layers(const Config& config) {
  const Index layers = config.model.layers;
  if (config.mesh.pp > 1 && config.pipeline.cut != "flops" && config.pipeline.cut != "layers") {
    if (layers > kMostListedLayers)
      throw ConfigError(
          "pipeline.cut = {} lists model.layers = {} layers, and a toy has at most {}: verify with fewer "
          "layers, or with pipeline.cut = layers or flops",
          config.pipeline.cut, layers, kMostListedLayers);
    return layers;
  }
  // One more than there are parts: they differ in size.
  const Index parts = Index{config.mesh.pp} * config.pipeline.chunks;
  return std::max<Index>(2, std::min(layers, parts + 1));
}

/// Some of the toy's layers where some of the model's are, from the first on.
std::string shrink_chosen(const std::vector<bool>& chosen, Index layers) {
  const auto count = narrow<Index>(std::count(chosen.begin(), chosen.end(), true));
  if (count == std::ssize(chosen)) return "all";
  return fmt::format("0-{}", std::clamp<Index>(count, 1, std::max<Index>(1, layers - 1)) - 1);
}

/// The same kind of rotation: all channels of a head or most, factors for as many pairs, sequences on the
/// same side of the original length.
void shrink_rotation(model::ModelConfig& toy, Index sequence, const Config& config) {
  const model::ModelConfig& model = config.model;
  model::RopeScaling& rope = toy.rope_scaling;
  toy.rotary_dim = model.turning_channels() == model.head_dim ? 0 : kHeadDim - 2;
  toy.rope_theta = std::min(model.rope_theta, kHighestTheta);
  for (std::vector<double>* const factors : {&rope.short_factors, &rope.long_factors})
    if (!factors->empty()) factors->resize(narrow<std::size_t>(toy.turning_channels() / 2), factors->back());
  if (!model::rope_depends_on_length(model))
    rope.original_length = std::min(rope.original_length, kOriginalLength);
  else
    rope.original_length =
        config.data.seq > rope.original_length ? sequence / 2 : std::max(sequence, kOriginalLength);
}

/// The shortest sequence that the ranks of cp and tp can cut.
Index shrink_sequence(const comm::MeshShape& mesh) {
  const Index cp = mesh.context(), tp = mesh.columns();
  const Index unit = cp == 1 ? tp : std::lcm<Index>(2 * cp, cp * tp);
  return round_up(kSequence, unit);
}

/// Adapters and trained parameters of the same kinds, in some of the layers where they are in some.
void shrink_trained(model::ModelConfig& toy, const Config& config) {
  model::LoraConfig& lora = toy.lora;
  lora.from.clear();
  if (const auto named = parse_ranges(lora.layers, config.model.layers))
    lora.layers = shrink_chosen(*named, toy.layers);
  // Patterns may name layers that a toy does not have.
  const auto keep_known = [&](std::vector<std::string>& patterns, const std::vector<std::string>& otherwise,
                              std::vector<std::string>& tried) {
    if (patterns.empty()) return;
    std::vector<std::string> kept;
    for (const std::string& pattern : std::vector<std::string>(patterns)) {
      tried = {pattern};
      Problems problems;
      model::check_trained(toy, problems);
      if (problems.empty()) kept.push_back(pattern);
    }
    tried = kept.empty() ? otherwise : kept;
  };
  std::vector<std::string> only = std::exchange(toy.train_only, {});
  if (lora.rank > 0) {
    std::vector<std::string> targets = lora.targets;
    keep_known(targets, {"q_proj", "v_proj"}, lora.targets);
  }
  keep_known(only, {"model.layers.1.*"}, toy.train_only);
}

void shrink_batch(BatchConfig& toy, const Config& config) {
  const Index stages = config.mesh.pp, most = std::max(kMicroBatches, 2 * stages);
  const Index count = micro_batches(config);
  // Interleaved schedules want multiples of the stages.
  const Index kept = count <= most ? count : most / stages * stages;
  if (toy.micro > 3) toy.micro = std::has_single_bit(narrow<std::uint64_t>(toy.micro)) ? 2 : 3;
  toy.global = kept * toy.micro * config.mesh.dp;
}

}  // namespace

Config shrink(const Config& config) {
  Config toy = config;
  const Index tp = config.mesh.columns();
  toy.data.seq = shrink_sequence(config.mesh);
  model::ModelConfig& model = toy.model;
  model.hidden = kHidden;
  model.head_dim = kHeadDim;
  shrink_heads(model, toy.data.seq, config);
  model.layers = shrink_layers(config);
  model.ffn = std::max(kFfn, 2 * tp + 1);
  model.vocab = std::max(kVocabulary, 2 * tp + 1);
  // Products have numbers of the size that they have in the user's width.
  model.init_std *= std::sqrt(static_cast<double>(config.model.hidden) / static_cast<double>(kHidden));
  shrink_rotation(model, toy.data.seq, config);
  toy.recompute.layers = shrink_chosen(recomputed_layers(config), model.layers);
  if (model.window > 0) {
    model.window = std::min(model.window, kWindow);
    model.window_layers = shrink_chosen(config.model.windowed_layers(), model.layers);
  }
  shrink_trained(model, config);
  shrink_batch(toy.batch, config);
  toy.zero.bucket_mb = std::min(toy.zero.bucket_mb, kBucketMb);
  toy.precision.loss_scale_power = std::min<int>(toy.precision.loss_scale_power, kPower);
  toy.optim.fused = "never";
  toy.hook.gradient = "none";  // what is left out of a gradient is not an error of the mesh
  toy.optim.lr = std::min(toy.optim.lr, kHighestRate);
  toy.schedule = {.kind = "constant"};
  toy.run.steps = kVerifiedSteps;
  toy.run.eval_every = 0;
  resolve(toy, config.mesh.size());
  return toy;
}

}  // namespace cartan::train
