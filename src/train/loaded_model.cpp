#include "cartan/train/loaded_model.hpp"

#include "cartan/core/json.hpp"
#include "cartan/core/log.hpp"

namespace cartan::train {
namespace {

/// The checkpoint, verified.
std::filesystem::path find_checkpoint(const std::filesystem::path& from, comm::Communicator& comm) {
  if (!std::filesystem::is_directory(from)) {
    comm::all_or_none(comm, "verifying the checkpoint",
                      [&] { store::CheckpointReader(from).verify_part(comm.rank(), comm.size()); });
    return from;
  }
  if (std::filesystem::exists(from / "config.json"))
    throw ConfigError(
        "{}: this version of cartan has no reader for Hugging Face folders; use a checkpoint or run "
        "directory",
        from.string());
  const auto found = store::find_newest_good(from, comm);
  if (!found) throw MissingError("{}: no good checkpoint in this directory", from.string());
  if (comm.rank() == 0)
    for (const std::string& rejected : found->rejected)
      log::warning("store", "checkpoint passed over: {}", rejected);
  return found->path;
}

}  // namespace

LoadedModel load_model(const std::filesystem::path& from, DType compute, device::Device& device,
                       comm::Communicator& comm) {
  LoadedModel loaded;
  loaded.path = find_checkpoint(from, comm);
  comm::all_or_none(comm, "loading the model", [&] {
    const store::CheckpointReader reader(loaded.path);
    const std::string where = loaded.path.string();
    if (!reader.state().contains("model")) throw DataError("{}: no model description", where);
    loaded.config = model::model_config_from_json(reader.state()["model"], where);
    loaded.run = run_state_from_json(reader.state(), where);
    loaded.layout = std::make_unique<shard::FlatLayout>(loaded.config);
    loaded.alone = comm::make_local_communicator("loading");
    loaded.state = std::make_unique<shard::FlatState>(*loaded.layout, shard::FlatStateOptions{compute, 0},
                                                      device, *loaded.alone);
    load(reader, loaded.path, loaded.config, false, *loaded.state);
    loaded.state->refresh_compute();
  });
  return loaded;
}

}  // namespace cartan::train
