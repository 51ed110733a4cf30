#include "infer/rope_tables.hpp"

#include "cartan/core/narrow.hpp"

namespace cartan::infer {
namespace {

/// Different tables that texts can need at a time: longrope has one for short and one for long texts.
Index tables_for(const model::ModelConfig& config, Index texts) {
  if (!model::rope_depends_on_length(config)) return 1;
  return config.rope_scaling.kind == "longrope" ? std::min<Index>(2, texts) : texts;
}

}  // namespace

RopeTables::RopeTables(const model::ModelConfig& config, Index texts, Index positions, device::Device& device)
    : config_(config),
      positions_(positions),
      device_(device),
      frequencies_(narrow<std::size_t>(tables_for(config, texts))),
      users_(frequencies_.size(), 0) {
  const Index rows = positions * std::ssize(users_), pairs = config.turning_channels() / 2;
  all_.buffer = device.allocate(narrow<std::size_t>(2 * rows * pairs) * sizeof(float),
                                device::MemoryKind::workspace, "rotary tables");
  all_.cosines = device::as_matrix(all_.buffer.data(), DType::f32, rows, pairs);
  all_.sines = device::as_matrix(device::advance(all_.buffer.data(), DType::f32, rows * pairs), DType::f32,
                                 rows, pairs);
}

bool RopeTables::turn(Index& table, Index length) {
  const bool is_new = table == kNone;
  if (!is_new && !model::rope_depends_on_length(config_)) return false;
  const std::vector<double> wanted = model::rope_frequencies(config_, length);
  if (!is_new && frequencies_[narrow<std::size_t>(table)] == wanted) return false;
  if (!is_new) leave(table);
  auto found = std::find(frequencies_.begin(), frequencies_.end(), wanted);
  if (found == frequencies_.end()) {
    const auto unused = std::find(users_.begin(), users_.end(), 0);
    CARTAN_ASSERT(unused != users_.end());
    found = frequencies_.begin() + (unused - users_.begin());
    fill(unused - users_.begin(), length);
    *found = wanted;
  }
  table = found - frequencies_.begin();
  ++users_[narrow<std::size_t>(table)];
  return true;
}

void RopeTables::fill(Index table, Index length) {
  const model::RopeTable one = model::make_rope_table(config_, positions_, device_, DType::f32, length);
  const auto store = [&](const device::ConstMatrix& from, const device::ConstMatrix& all) {
    const device::ConstMatrix rows = all.row_block(first_row(table), positions_);
    // The rows are this object's own.
    device_.ops().copy(from, {const_cast<void*>(rows.data), rows.dtype, rows.rows, rows.cols, rows.stride},
                       device_.compute_stream());
  };
  store(one.cosines, all_.cosines);
  store(one.sines, all_.sines);
}

}  // namespace cartan::infer
