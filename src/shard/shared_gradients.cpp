#include "cartan/shard/shared_gradients.hpp"

#include <algorithm>

#include "cartan/core/narrow.hpp"

namespace cartan::shard {

SharedGradients::SharedGradients(FlatState& state, comm::Mesh& mesh, bool is_tied) : state_(state) {
  comm::Communicator& tensor = mesh.axis(comm::Axis::tp);
  comm::Communicator& pipeline = mesh.axis(comm::Axis::pp);
  if (is_tied && pipeline.size() > 1)
    ends_ = mesh.strided(pipeline, std::max(1, pipeline.size() - 1), "ends of " + pipeline.name());
  const auto group_of = [&](int count) {
    if (count == tensor.size()) return &tensor;
    auto& group = sharers_[count];
    if (group == nullptr) group = mesh.neighbours(tensor, count, fmt::format("sharers in {}", tensor.name()));
    return group.get();
  };
  const auto& units = state.layout().units();
  for (std::size_t u = 0; u < units.size(); ++u) {
    const LeafRange owned = units[u].gradient.owned;
    // Groups are made on every rank, whether or not it owns a part.
    for (const model::ParameterSpec& parameter : units[u].spec->parameters)
      if (parameter.trained && parameter.sharers > 1) group_of(parameter.sharers);
    for_each_part_in(units[u], owned, [&](const model::ParameterSpec& parameter, Index begin, Index end) {
      if (parameter.sharers == 1) return;
      comm::Communicator* group = group_of(parameter.sharers);
      // Neighbours go together.
      if (!ranges_.empty() && ranges_.back().unit == u && ranges_.back().group == group &&
          ranges_.back().elements.end == begin)
        ranges_.back().elements.end = end;
      else
        ranges_.push_back({u, {begin, end}, group});
    });
    if (ends_ != nullptr && ends_->size() > 1 && units[u].number == 0 && owned.end > owned.begin)
      ranges_.push_back({u, owned, ends_.get()});
  }
}

void SharedGradients::sum_over(comm::Communicator& group, device::Vector values) {
  const CanonicalTree& tree = trees_.try_emplace(group.size(), group.size()).first->second;
  device::Stream& stream = state_.device().compute_stream();
  group.all_reduce({&tree, {static_cast<float*>(values.data)}, values.size}, stream);
}

void SharedGradients::sum() {
  state_.join_tied_gradient();
  const auto& units = state_.layout().units();
  for (const Range& range : ranges_)
    sum_over(*range.group, state_.gradient(units[range.unit].gradient, range.elements.begin,
                                           range.elements.end - range.elements.begin));
}

}  // namespace cartan::shard
