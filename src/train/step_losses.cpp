#include "train/step_losses.hpp"

#include <algorithm>
#include <cmath>

#include "cartan/core/narrow.hpp"

namespace cartan::train {

StepLosses::StepLosses(device::Device& device, Index most_rows)
    : device_(device),
      values_(device.allocate(narrow<std::size_t>(most_rows) * sizeof(float), device::MemoryKind::workspace,
                              "row losses")) {}

void StepLosses::clear() {
  pieces_.clear();
  rows_ = targets_ = 0;
  sum_ = {};
  nonfinite_leaf_.reset();
}

void StepLosses::collect(const data::Batch& rows, Index first_leaf, const model::Flight& flight) {
  const Index count = rows.sequences * rows.seq;
  CARTAN_ASSERT(narrow<std::size_t>(rows_ + count) * sizeof(float) <= values_.size_bytes());
  device_.copy(values_.as<float>() + rows_, flight.row_loss.data, narrow<std::size_t>(count) * sizeof(float),
               device_.compute_stream());
  pieces_.push_back({first_leaf, rows.seq, count});
  rows_ += count;
  targets_ += data::counted_targets(rows.targets);
}

void StepLosses::read() {
  host_.resize(narrow<std::size_t>(rows_));
  device_.copy_out(host_.data(), values_.data(), host_.size() * sizeof(float), device_.compute_stream());
  for (const float loss : host_) sum_.add(static_cast<double>(loss));
  std::size_t begin = 0;
  for (const Piece& piece : pieces_) {
    const auto rows = std::span(host_).subspan(begin, narrow<std::size_t>(piece.rows));
    begin += rows.size();
    const auto bad = std::ranges::find_if(rows, [](float loss) { return !std::isfinite(loss); });
    if (bad != rows.end() && !nonfinite_leaf_)
      nonfinite_leaf_ = piece.first_leaf + (bad - rows.begin()) / std::max<Index>(1, piece.seq);
  }
}

}  // namespace cartan::train
