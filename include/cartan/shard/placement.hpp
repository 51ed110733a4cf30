// Where a logical tensor lives: for each mesh axis, replicated or split along a dimension. Plain data;
// initialisation, checkpoints and export ask it which part of a tensor a rank holds.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "cartan/comm/mesh.hpp"
#include "cartan/core/types.hpp"
#include "cartan/model/parameters.hpp"

namespace cartan::shard {

/// A box of a tensor.
struct Slice {
  std::vector<Index> start, count;
  Index elements() const;
  friend bool operator==(const Slice&, const Slice&) = default;
};

class Placement {
 public:
  /// Replicated on every axis.
  Placement() = default;
  /// What the model says of a parameter: split over tp along tensor_dim, replicated elsewhere.
  explicit Placement(const model::ParameterSpec& parameter);

  Placement& split(comm::Axis axis, int dimension);
  std::optional<int> dimension(comm::Axis axis) const { return split_[static_cast<std::size_t>(axis)]; }

  /// The part of a tensor of `shape` that the rank at `at` holds. A dimension that does not divide is split
  /// into parts that differ by one; two axes that split the same dimension divide it one after the other, the
  /// outer axis first.
  Slice local_slice(const std::vector<Index>& shape, const comm::MeshShape& mesh,
                    const comm::MeshCoordinate& at) const;

 private:
  std::array<std::optional<int>, 4> split_{};
};

}  // namespace cartan::shard
