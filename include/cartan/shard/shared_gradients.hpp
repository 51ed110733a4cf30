// Parameters that several ranks hold the same part of, beside the replicas of the data plane: what tensor
// parallelism replicates, and the embedding of a tied model that the first and the last stage of a pipeline
// both use. Each holder computes a summand of the gradient; afterwards all have the sum, in the order of
// ranks.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "cartan/comm/mesh_groups.hpp"
#include "cartan/shard/flat_state.hpp"

namespace cartan::shard {

class SharedGradients {
 public:
  /// Makes the groups that are needed. Collective over the mesh.
  SharedGradients(FlatState& state, comm::Mesh& mesh, bool is_tied);

  /// After the reduction over the data plane; afterwards the state's gradients are complete. Collective.
  void sum();

  /// What this rank owns of a unit and all ranks of `group` hold.
  struct Range {
    std::size_t unit = 0;
    LeafRange elements;
    comm::Communicator* group = nullptr;
  };
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  void sum_over(comm::Communicator& group, device::Vector values);

  FlatState& state_;
  std::map<int, std::unique_ptr<comm::Communicator>> sharers_;  ///< by their number
  std::unique_ptr<comm::Communicator> ends_;                    ///< first and last stage
  std::map<int, CanonicalTree> trees_;  ///< by the number of ranks; calls under way use them
  std::vector<Range> ranges_;
};

}  // namespace cartan::shard
