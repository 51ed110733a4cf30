#include "cartan/train/loaded_model.hpp"

#include "cartan/core/narrow.hpp"
#include "cartan/pipeline/cut.hpp"
#include "cartan/train/config.hpp"

namespace cartan::train {

LoadedModel load_model(const std::filesystem::path& from, DType compute, device::Device& device,
                       comm::Mesh& mesh, const std::string& cut) {
  return load_model(ModelSource(from, mesh.world()), compute, device, mesh, cut);
}

LoadedModel load_model(const ModelSource& source, DType compute, device::Device& device, comm::Mesh& mesh,
                       const std::string& cut) {
  LoadedModel loaded;
  loaded.path = source.path();
  loaded.config = source.config();
  loaded.run = source.run();
  Problems problems;
  check_columns(loaded.config, mesh.shape(), problems);
  problems.throw_if_any("the mesh");
  const comm::MeshCoordinate& place = mesh.coordinate();
  loaded.stage =
      pipeline::cut_units(loaded.config, 1, mesh.shape().pp, cut).at(narrow<std::size_t>(place.pp));
  comm::all_or_none(mesh.world(), "loading the model", [&] {
    loaded.layout = std::make_unique<shard::FlatLayout>(
        loaded.config, shard::units_of_stages(loaded.config, {loaded.stage}), shard::GradientLife::step,
        shard::ShardPlace{}, model::TensorSlice{place.tp, mesh.shape().columns()});
    loaded.alone = comm::make_local_communicator("loading");
    loaded.state = std::make_unique<shard::FlatState>(*loaded.layout, shard::FlatStateOptions{compute, 0},
                                                      device, *loaded.alone);
    source.load(loaded.config, *loaded.state);
    loaded.state->refresh_compute();
  });
  return loaded;
}

}  // namespace cartan::train
