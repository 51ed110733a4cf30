// `cartan verify`: does the user's mesh compute what one rank computes? The configuration at toy size, a few
// steps on one rank and on the mesh, every number and tensor compared.
#pragma once

#include <string>
#include <vector>

#include "cartan/comm/mesh_groups.hpp"
#include "cartan/train/config.hpp"
#include "cartan/train/whole_tensors.hpp"

namespace cartan::train {

inline constexpr int kVerifiedSteps = 3;

/// A resolved configuration at toy size: another width, depth, vocabulary, sequence and batch, with the same
/// mesh and everything else that decides which code runs and what it computes: kind of model, how tp and cp
/// divide the heads, micro-batches of a step (up to 8, or two a stage), parts of the pipeline, ZeRO,
/// recomputation, types. Buckets are small enough that there are several. The rate is constant, and at most
/// 0.01: above, training multiplies rounding. The rotary base is at most 100, and the original length of a
/// scaled one goes with it, so that all angles turn in the short sequences. Updates are not fused, so that
/// gradients can be looked at. It is resolved too. Throws ConfigError where pipeline.cut lists more layers
/// than a toy has.
Config shrink(const Config& config);

/// What a few steps computed; on every rank of their mesh.
struct ToyRun {
  std::vector<double> losses, norms;  ///< of each step
  Tensors gradients;                  ///< of the first step, as summed: times tokens and loss scale
  Tensors parameters;                 ///< after the last step
};

/// kVerifiedSteps steps of a configuration resolved for `mesh`, on random documents of ragged lengths that
/// run.seed decides. `overlap` as for Engine. Collective.
ToyRun train_toy(const Config& config, comm::Mesh& mesh, device::Device& device, bool overlap);

/// How equal a mesh has to be to one rank.
struct Tolerance {
  bool same_bits = false;  ///< the rest has no effect
  double number = 0;       ///< of losses and gradient norms, relative
  double tensor = 0;       ///< of tensors: norm of the difference by norm
  /// Whether norms after the first update, and parameters, are compared. In 16 bits gradients that should
  /// be zero are noise, which AdamW makes as large as any step.
  bool after_update = true;
};
/// The same bits where neither tp nor cp split a sum.
Tolerance tolerance_of(const Config& config);

/// One row: a number, or a tensor of which the norms are shown.
struct Comparison {
  std::string quantity;  ///< "loss", "gradient norm", "gradient of NAME", "parameter NAME"
  int step = 0;          ///< 1-based
  bool is_tensor = false;
  double one_rank = 0, mesh = 0;
  double difference = 0;  ///< relative
  enum class Verdict { agrees, differs, not_compared } verdict = Verdict::agrees;
};
/// Rows in the order in which a step computes: loss of the first step, its gradients and their norm; losses
/// and norms of later steps; parameters. Tensors stand in the order of model::describe_units. NaN differs
/// from everything.
std::vector<Comparison> compare(const model::ModelConfig& model, const ToyRun& one_rank, const ToyRun& mesh,
                                const Tolerance& tolerance);

/// One sentence that names the first row that differs, and the first tensor if that is another; empty where
/// none differs.
std::string first_difference(const std::vector<Comparison>& rows);

struct Verification {
  Config toy;
  Tolerance tolerance;
  std::vector<Comparison> rows;  ///< on rank 0, which computes what one rank alone does
};
/// Of a configuration resolved for `mesh`. Collective over all ranks.
Verification verify(const Config& config, comm::Session& session, comm::Mesh& mesh, device::Device& device);

}  // namespace cartan::train
