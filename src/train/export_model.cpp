#include "cartan/train/export_model.hpp"

#include "cartan/model/adapters.hpp"

namespace cartan::train {

store::FolderReport export_model(const ModelSource& source, const model::ModelConfig& config,
                                 const std::filesystem::path& folder, bool merged,
                                 const store::FolderOptions& options, comm::Communicator& comm) {
  const auto read = [&](const std::string& parameter, Index first, Index count, float* out) {
    source.read_merged(parameter, first, count, out);
  };
  if (config.lora.rank == 0 || merged)
    return store::write_model_folder(folder, model::without_adapters(config), read, options, comm);
  store::FolderReport report;
  comm::all_or_none(comm, "writing the adapters", [&] {
    if (comm.rank() != 0) return;
    report = store::write_adapter_folder(folder, config, source.base_path(), read, options);
  });
  return report;
}

}  // namespace cartan::train
