// Reads a checkpoint in one process: names and shapes once through HDF5, values by plain reads at their
// positions.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "blocks.hpp"
#include "cartan/core/canonical_tree.hpp"
#include "cartan/core/error.hpp"
#include "cartan/core/hash.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/text.hpp"
#include "cartan/store/checkpoint.hpp"
#include "file_access.hpp"
#include "head.hpp"
#include "user_block.hpp"

namespace cartan::store {

struct CheckpointReader::State {
  explicit State(std::filesystem::path file_path)
      : path(std::move(file_path)),
        fd(open_for_reading(path)),
        head(read_head(fd.get(), path)),
        table(head.tensors) {
    for (std::size_t i = 0; i < head.tensors.size(); ++i) index.emplace(head.tensors[i].path, i);
  }

  std::size_t find(const std::string& name) const {
    const auto found = index.find(name);
    if (found != index.end()) return found->second;
    std::vector<std::string> names;
    for (const TensorInfo& tensor : head.tensors) names.push_back(tensor.path);
    const auto near = nearest(name, names);
    throw DataError("{}: no tensor {}{}", path.string(), name, near ? fmt::format(" (near: {})", *near) : "");
  }

  void verify_blocks(Index begin, Index end) const {
    std::vector<std::byte> buffer(kBlockBytes);
    for (Index number = begin; number < end; ++number) {
      const Block block = table.block(number);
      const auto bytes = std::span(buffer).first(block.bytes);
      read_at(fd.get(), path, head.tensors_begin + block.begin, bytes);
      if (hash_bytes(bytes) != head.checksums[static_cast<std::size_t>(number)])
        throw DataError("{}: damaged: {} do not match their checksum", path.string(),
                        name_range(head.tensors, table, block.begin, block.bytes));
    }
  }

  std::filesystem::path path;
  Descriptor fd;
  HeadContent head;
  BlockTable table;
  std::unordered_map<std::string, std::size_t> index;
};

CheckpointReader::CheckpointReader(const std::filesystem::path& path)
    : state_(std::make_unique<State>(path)) {}
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader& CheckpointReader::operator=(CheckpointReader&&) noexcept = default;
CheckpointReader::~CheckpointReader() = default;

const std::filesystem::path& CheckpointReader::path() const { return state_->path; }
std::size_t CheckpointReader::file_bytes() const { return state_->head.file_bytes; }
const Json& CheckpointReader::state() const { return state_->head.state; }
const std::vector<TensorInfo>& CheckpointReader::tensors() const { return state_->head.tensors; }
bool CheckpointReader::has(const std::string& path) const { return state_->index.contains(path); }

const TensorInfo& CheckpointReader::tensor(const std::string& path) const {
  return state_->head.tensors[state_->find(path)];
}

void CheckpointReader::read(const std::string& path, Index first, Index count, void* out) const {
  const std::size_t number = state_->find(path);
  const TensorInfo& tensor = state_->head.tensors[number];
  if (first < 0 || count < 0 || first > tensor.elements() - count)
    throw InternalError("{}: elements [{}, {}) of {} asked for, which has {}", state_->path.string(), first,
                        first + count, path, tensor.elements());
  const std::size_t element = size_of(tensor.dtype);
  read_at(state_->fd.get(), state_->path,
          state_->head.tensors_begin + state_->table.tensor_begin(number) +
              static_cast<std::size_t>(first) * element,
          {static_cast<std::byte*>(out), static_cast<std::size_t>(count) * element});
}

void CheckpointReader::verify() const { verify_part(0, 1); }

void CheckpointReader::verify_part(int part, int parts) const {
  const LeafRange blocks = leaf_range(state_->table.blocks(), part, parts);
  state_->verify_blocks(blocks.begin, blocks.end);
}

Json describe(const CheckpointReader& reader) {
  Json tensors = Json::array();
  Index parameters = 0;
  for (const TensorInfo& tensor : reader.tensors()) {
    if (tensor.path.starts_with("model/")) parameters += tensor.elements();
    tensors.push_back({{"name", tensor.path},
                       {"dtype", name_of(tensor.dtype)},
                       {"shape", tensor.shape},
                       {"bytes", tensor.bytes()}});
  }
  Json out = {{"path", reader.path().string()},
              {"format", kFormatVersion},
              {"bytes", reader.file_bytes()},
              {"parameters", parameters}};
  for (const char* key : {"step", "tokens"})
    if (reader.state().is_object() && reader.state().contains(key)) out[key] = reader.state()[key];
  out["state"] = reader.state();
  out["tensors"] = std::move(tensors);
  return out;
}

}  // namespace cartan::store
