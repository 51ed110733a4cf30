#include "cartan/train/loaded_model.hpp"

namespace cartan::train {

LoadedModel load_model(const std::filesystem::path& from, DType compute, device::Device& device,
                       comm::Communicator& comm) {
  return load_model(ModelSource(from, comm), compute, device, comm);
}

LoadedModel load_model(const ModelSource& source, DType compute, device::Device& device,
                       comm::Communicator& comm) {
  LoadedModel loaded;
  loaded.path = source.path();
  loaded.config = source.config();
  loaded.run = source.run();
  comm::all_or_none(comm, "loading the model", [&] {
    loaded.layout = std::make_unique<shard::FlatLayout>(loaded.config);
    loaded.alone = comm::make_local_communicator("loading");
    loaded.state = std::make_unique<shard::FlatState>(*loaded.layout, shard::FlatStateOptions{compute, 0},
                                                      device, *loaded.alone);
    source.load(loaded.config, *loaded.state);
    loaded.state->refresh_compute();
  });
  return loaded;
}

}  // namespace cartan::train
