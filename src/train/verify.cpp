// The comparison of a mesh with one rank.
#include "cartan/train/verify.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "cartan/core/narrow.hpp"
#include "cartan/core/random.hpp"
#include "cartan/train/engine.hpp"
#include "cartan/train/run_device.hpp"

namespace cartan::train {
namespace {

using Verdict = Comparison::Verdict;

/// Sequences `leaves` of the global batch of a step: random tokens, two documents in each sequence, a quarter
/// of the targets masked, one sequence in seven without any. A function of seed, step and leaf.
void fill_batch(const Config& config, int step, LeafRange leaves, data::MicroBatch& micro) {
  const Index seq = config.data.seq;
  const RandomStream random(config.run.seed, fmt::format("verify {}", step));
  data::Batch batch;
  batch.sequences = leaves.end - leaves.begin;
  batch.seq = seq;
  const auto token = [&](Index leaf, Index t) {
    const std::uint64_t bits = random.bits(2 * narrow<std::uint64_t>(leaf * seq + t));
    return narrow<std::int32_t>(bits % narrow<std::uint64_t>(config.model.vocab));
  };
  for (Index leaf = leaves.begin; leaf < leaves.end; ++leaf) {
    const Index cut = leaf % seq;
    for (Index t = 0; t < seq; ++t) {
      const Index start = t < cut ? 0 : cut;
      const bool is_last = t + 1 == cut || t + 1 == seq;
      const bool masked =
          leaf % 7 == 5 || random.bits(2 * narrow<std::uint64_t>(leaf * seq + t) + 1) % 4 == 0;
      batch.tokens.push_back(token(leaf, t));
      batch.targets.push_back(is_last || masked ? data::kIgnoredTarget : token(leaf, t + 1));
      batch.positions.push_back(narrow<std::int32_t>(t - start));
      batch.document_start.push_back(narrow<std::int32_t>(start));
    }
  }
  micro.first_leaf = leaves.begin;
  micro.batch = std::move(batch);
}

/// The same toy without any axis, and without what should change no bit either.
Config on_one_rank(Config toy) {
  toy.mesh = {1, 1, 1, 1};
  toy.zero.stage = 0;
  toy.zero.shard = 0;
  toy.recompute = {};
  return toy;
}

bool has_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y) && !std::isnan(x);
  });
}

double relative(double difference, double by) { return difference == 0 ? 0 : difference / by; }

Verdict verdict_of(bool agrees) { return agrees ? Verdict::agrees : Verdict::differs; }

Comparison compare_numbers(const std::string& quantity, int step, double one_rank, double mesh,
                           const Tolerance& tolerance) {
  Comparison row{quantity, step, false,
                 one_rank, mesh, relative(std::abs(mesh - one_rank), std::abs(one_rank))};
  row.verdict = verdict_of(tolerance.same_bits ? one_rank == mesh : row.difference <= tolerance.number);
  return row;
}

Comparison compare_tensors(const std::string& quantity, int step, const std::vector<float>& one_rank,
                           const std::vector<float>& mesh, const Tolerance& tolerance) {
  Comparison row{quantity, step, true};
  row.one_rank = distance(one_rank, one_rank).norm;
  row.mesh = distance(mesh, mesh).norm;
  row.difference = relative(distance(mesh, one_rank).difference, row.one_rank);
  row.verdict =
      verdict_of(tolerance.same_bits ? has_same_bits(one_rank, mesh) : row.difference <= tolerance.tensor);
  return row;
}

std::string describe(const Comparison& row) {
  if (row.is_tensor)
    return fmt::format("{} {} step {} differs by {:.3g} of its norm {:.6g}", row.quantity,
                       row.quantity.starts_with("parameter") ? "after" : "of", row.step, row.difference,
                       row.one_rank);
  return fmt::format("{} of step {} is {:.9g} instead of {:.9g}, a difference of {:.3g}", row.quantity,
                     row.step, row.mesh, row.one_rank, row.difference);
}

}  // namespace

ToyRun train_toy(const Config& config, comm::Mesh& mesh, device::Device& device, bool overlap) {
  Engine engine(config, device, mesh, overlap);
  engine.state().initialise(config.model, config.run.seed);
  ToyRun run;
  Index updates = 0;
  for (int step = 1; step <= kVerifiedSteps; ++step) {
    Index next = 0;
    const StepResult result = engine.train_step(updates + 1, config.optim.lr, [&](data::MicroBatch& micro) {
      fill_batch(config, step, engine.share().of(next++), micro);
    });
    if (result.applied)
      ++updates;
    else if (step == 1)
      throw NumericError(
          "the first step of the toy overflows in fp16 at loss scale {}, so there are no gradients to "
          "compare: "
          "lower precision.loss-scale",
          result.loss_scale);
    run.losses.push_back(result.loss);
    run.norms.push_back(result.grad_norm);
    // The sums themselves: a factor would round.
    if (step == 1)
      run.gradients = gather_tensors(
          config.model, gradient_values(engine.state(), 1.0, &shard::GradientPart::alone), mesh.world());
  }
  run.parameters =
      gather_tensors(config.model, master_values(engine.state(), &shard::GradientPart::alone), mesh.world());
  return run;
}

Tolerance tolerance_of(const Config& config) {
  const bool spreads = config.mesh.dp * config.mesh.context() > 1;
  const bool rounds = spreads && config.precision.reduce != "fp32";
  const bool keeps_order = !spreads || config.precision.sum == "canonical";
  if (config.mesh.columns() == 1 && config.mesh.context() == 1 && !rounds && keeps_order)
    return {.same_bits = true};
  if (config.precision.compute == "fp32" && !rounds) return {.number = 1e-5, .tensor = 2e-4};
  return {.number = 2e-2, .tensor = 5e-2, .after_update = false};
}

std::vector<Comparison> compare(const model::ModelConfig& model, const ToyRun& one_rank, const ToyRun& mesh,
                                const Tolerance& tolerance) {
  std::vector<Comparison> rows;
  const bool compares_all = tolerance.same_bits || tolerance.after_update;
  const auto each_tensor = [&](const std::string& what, int step, const Tensors& expected,
                               const Tensors& found) {
    for (const model::UnitSpec& unit : model::describe_units(model))
      for (const model::ParameterSpec& p : unit.parameters) {
        if (!p.trained) continue;
        rows.push_back(
            compare_tensors(what + p.name, step, expected.at(p.name), found.at(p.name), tolerance));
        // Keys' biases move all scores of a row nearly alike, which softmax does not see.
        const bool is_noise = step == 1 && p.name.ends_with("k_proj.bias");
        if (!compares_all && (step > 1 || is_noise)) rows.back().verdict = Verdict::not_compared;
      }
  };
  const int steps = narrow<int>(one_rank.losses.size());
  for (int step = 1; step <= steps; ++step) {
    const auto i = narrow<std::size_t>(step - 1);
    rows.push_back(compare_numbers("loss", step, one_rank.losses[i], mesh.losses.at(i), tolerance));
    if (step == 1) each_tensor("gradient of ", 1, one_rank.gradients, mesh.gradients);
    rows.push_back(compare_numbers("gradient norm", step, one_rank.norms[i], mesh.norms.at(i), tolerance));
    if (!compares_all && step > 1) rows.back().verdict = Verdict::not_compared;
  }
  each_tensor("parameter ", steps, one_rank.parameters, mesh.parameters);
  return rows;
}

std::string first_difference(const std::vector<Comparison>& rows) {
  const auto differs = [](const Comparison& row) { return row.verdict == Verdict::differs; };
  const auto first = std::find_if(rows.begin(), rows.end(), differs);
  if (first == rows.end()) return {};
  std::string text = "the mesh does not give the numbers of one rank: " + describe(*first);
  const auto tensor =
      std::find_if(first, rows.end(), [&](const Comparison& row) { return differs(row) && row.is_tensor; });
  if (tensor != first && tensor != rows.end()) text += "; first tensor: " + describe(*tensor);
  return text;
}

Verification verify(const Config& config, comm::Session& session, comm::Mesh& mesh, device::Device& device) {
  Verification verification{shrink(config), {}, {}};
  const Config& toy = verification.toy;
  verification.tolerance = tolerance_of(toy);
  ToyRun one_rank;
  comm::all_or_none(mesh.world(), "the toy on one rank", [&] {
    if (session.rank() != 0) return;
    comm::Mesh alone = comm::Mesh::alone();
    one_rank = train_toy(on_one_rank(toy), alone, device, false);
  });
  const ToyRun found = train_toy(toy, mesh, device, overlaps(session, device));
  if (session.rank() == 0) verification.rows = compare(toy.model, one_rank, found, verification.tolerance);
  return verification;
}

}  // namespace cartan::train
