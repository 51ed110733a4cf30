#include "cartan/shard/placement.hpp"

#include <functional>
#include <numeric>

#include "cartan/core/canonical_tree.hpp"
#include "cartan/core/error.hpp"

namespace cartan::shard {

Index Slice::elements() const {
  return std::accumulate(count.begin(), count.end(), Index{1}, std::multiplies<>());
}

Placement::Placement(const model::ParameterSpec& parameter) {
  if (parameter.tensor_dim) split(comm::Axis::tp, *parameter.tensor_dim);
}

Placement& Placement::split(comm::Axis axis, int dimension) {
  split_[static_cast<std::size_t>(axis)] = dimension;
  return *this;
}

Slice Placement::local_slice(const std::vector<Index>& shape, const comm::MeshShape& mesh,
                             const comm::MeshCoordinate& at) const {
  Slice slice{std::vector<Index>(shape.size(), 0), shape};
  const std::array<int, 4> extents = mesh.extents(), position{at.pp, at.dp, at.cp, at.tp};
  for (std::size_t axis = 0; axis < split_.size(); ++axis) {
    if (!split_[axis]) continue;
    const auto dim = static_cast<std::size_t>(*split_[axis]);
    CARTAN_ASSERT(dim < shape.size());
    const LeafRange part = leaf_range(slice.count[dim], position[axis], extents[axis]);
    slice.start[dim] += part.begin;
    slice.count[dim] = part.end - part.begin;
  }
  return slice;
}

}  // namespace cartan::shard
