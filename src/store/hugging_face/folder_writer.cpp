#include "cartan/store/model_folder_writer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "cartan/core/convert.hpp"
#include "cartan/core/file.hpp"
#include "cartan/core/float16.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/store/model_config_file.hpp"
#include "cartan/store/model_folder.hpp"
#include "store/file_access.hpp"
#include "store/hugging_face/passed_on.hpp"
#include "store/shared_file.hpp"
#include "store/temporary_file.hpp"

namespace cartan::store {
namespace {

namespace fs = std::filesystem;

// Elements that a rank converts at a time.
constexpr Index kPiece = Index{8} << 20;

// Entries of config.json that name tokens.
constexpr std::array kTokens{"bos_token_id", "eos_token_id", "pad_token_id"};

/// A file of the folder: a header, then its tensors without gaps.
struct Shard {
  std::string name;
  std::vector<FileTensor> tensors;
  std::uint64_t bytes = 0;  ///< of the tensors
  std::string header;       ///< with its length
};

std::string header_of(const Shard& shard, DType dtype) {
  std::vector<NamedTensor> tensors;
  tensors.reserve(shard.tensors.size());
  for (const FileTensor& tensor : shard.tensors) tensors.push_back({tensor.name, dtype, tensor.shape, {}});
  return safetensors_header(tensors, "pt");
}

std::vector<Shard> cut_into_shards(const model::ModelConfig& config, const FolderOptions& options) {
  std::vector<Shard> shards(1);
  for (FileTensor& tensor : file_tensors(config)) {
    const std::uint64_t bytes = narrow<std::uint64_t>(tensor.elements()) * size_of(options.dtype);
    if (!shards.back().tensors.empty() && shards.back().bytes + bytes > options.most_bytes)
      shards.emplace_back();
    shards.back().bytes += bytes;
    shards.back().tensors.push_back(std::move(tensor));
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shards[i].name = shards.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    shards[i].header = header_of(shards[i], options.dtype);
  }
  return shards;
}

Json index_of(const std::vector<Shard>& shards) {
  std::uint64_t bytes = 0;
  Json map = Json::object();
  for (const Shard& shard : shards) {
    bytes += shard.bytes;
    for (const FileTensor& tensor : shard.tensors) map[tensor.name] = shard.name;
  }
  return {{"metadata", {{"total_size", bytes}}}, {"weight_map", std::move(map)}};
}

/// Elements [first, first + values.size()) of a tensor of the files.
void read_tensor(const FileTensor& tensor, Index first, std::span<float> values, const ReadParameter& read) {
  const Index end = first + std::ssize(values);
  for (std::size_t i = 0; i < tensor.parts.size(); ++i) {
    const Index part_begin = tensor.parts[i].first;
    const Index part_end = i + 1 < tensor.parts.size() ? tensor.parts[i + 1].first : tensor.elements();
    const Index from = std::max(first, part_begin), to = std::min(end, part_end);
    if (from < to)
      read(tensor.parts[i].parameter, from - part_begin, to - from, values.data() + (from - first));
  }
}

void convert(std::span<const float> values, DType dtype, const std::string& tensor,
             std::vector<std::byte>& out) {
  out.resize(values.size() * size_of(dtype));
  convert_floats(values, dtype, out);
  if (dtype != DType::f16) return;
  for (const float value : values)
    if (std::isfinite(value) && !std::isfinite(to_float(to_float16(value))))
      throw DataError("{} has the element {}, which fp16 cannot hold: write bf16 or fp32", tensor, value);
}

/// What this rank writes of a shard, one piece after another: every size()-th.
class PieceMaker {
 public:
  PieceMaker(const Shard& shard, DType dtype, const ReadParameter& read, const comm::Communicator& comm)
      : dtype_(dtype), read_(read) {
    std::uint64_t position = shard.header.size();
    Index number = 0;
    for (const FileTensor& tensor : shard.tensors) {
      const Index elements = tensor.elements();
      for (Index first = 0; first < elements; first += kPiece) {
        const Index count = std::min(kPiece, elements - first);
        if (number++ % comm.size() == comm.rank()) mine_.push_back({&tensor, first, count, position});
        position += narrow<std::uint64_t>(count) * size_of(dtype);
      }
    }
    rounds_ = ceil_div(number, Index{comm.size()});
  }
  /// The same on every rank.
  Index rounds() const { return rounds_; }
  /// Of a round; no bytes where this rank has none. Valid until the next call.
  Piece make(Index round) {
    if (round >= std::ssize(mine_)) return {};
    const Mine& mine = mine_[narrow<std::size_t>(round)];
    values_.resize(narrow<std::size_t>(mine.count));
    read_tensor(*mine.tensor, mine.first, values_, read_);
    convert(values_, dtype_, mine.tensor->name, bytes_);
    return {mine.position, bytes_.data(), bytes_.size()};
  }

 private:
  struct Mine {
    const FileTensor* tensor;
    Index first, count;
    std::uint64_t position;
  };
  DType dtype_;
  const ReadParameter& read_;
  std::vector<Mine> mine_;
  Index rounds_ = 0;
  std::vector<float> values_;
  std::vector<std::byte> bytes_;
};

/// Rank 0 makes the file, all fill it, rank 0 keeps it under its temporary name.
TemporaryFile write_shard(const fs::path& folder, const Shard& shard, DType dtype, const ReadParameter& read,
                          comm::Communicator& comm) {
  TemporaryFile file;
  std::string name;
  comm::all_or_none(comm, "making a file of the model", [&] {
    if (comm.rank() != 0) return;
    file = TemporaryFile(folder / shard.name);
    name = file.path().filename().string();
    set_size(file.fd(), file.path(), shard.header.size() + shard.bytes);
    write_at(file.fd(), file.path(), 0, std::as_bytes(std::span(shard.header)));
  });
  std::array<char, 512> shared{};
  CARTAN_ASSERT(name.size() < shared.size());
  std::copy(name.begin(), name.end(), shared.begin());
  comm.broadcast_host(std::as_writable_bytes(std::span(shared)), 0);
  PieceMaker pieces(shard, dtype, read, comm);
  const auto to = open_shared_file(folder / shared.data(), comm, {});
  std::exception_ptr failure;
  for (Index round = 0; round < pieces.rounds() && !failure; ++round) {
    try {
      comm::all_or_none(comm, "writing the model", [&] {
        std::exception_ptr bad;
        Piece piece;
        try {
          piece = pieces.make(round);
        } catch (...) {
          bad = std::current_exception();
        }
        to->write(piece);  // collective, whatever went wrong before
        if (bad) std::rethrow_exception(bad);
      });
    } catch (...) {
      failure = std::current_exception();
    }
  }
  to->sync_and_close();
  if (failure) std::rethrow_exception(failure);
  return file;
}

void write_settings(const fs::path& folder, const model::ModelConfig& config, const FolderOptions& options) {
  Json json = model_config_to_hugging_face(config, options.dtype);
  // Without a value transformers takes the family's, which may lie outside of this vocabulary.
  for (const char* const token : kTokens) json[token] = nullptr;
  const fs::path& from = options.tokenizer_from;
  if (!from.empty() && fs::exists(from / "config.json")) {
    const Json other = read_json(from / "config.json");
    for (const char* const token : kTokens)
      if (other.is_object() && other.contains(token)) json[token] = other[token];
  }
  write_file_atomically(folder / "config.json", json.dump(2) + "\n");
  Json generation{{"_from_model_config", true}};
  for (const char* const token : kTokens)
    if (!json[token].is_null()) generation[token] = json[token];
  write_file_atomically(folder / "generation_config.json", generation.dump(2) + "\n");
  pass_on(from, folder);
}

}  // namespace

FolderReport write_model_folder(const fs::path& folder, const model::ModelConfig& config,
                                const ReadParameter& read, const FolderOptions& options,
                                comm::Communicator& comm) {
  std::vector<Shard> shards;
  comm::all_or_none(comm, "preparing the folder of the model", [&] {
    shards = cut_into_shards(config, options);
    if (comm.rank() == 0) check_export_folder(folder, options.overwrite);
  });
  std::vector<TemporaryFile> files;
  files.reserve(shards.size());
  for (const Shard& shard : shards) files.push_back(write_shard(folder, shard, options.dtype, read, comm));
  FolderReport report;
  for (const Shard& shard : shards) report.bytes += shard.header.size() + shard.bytes;
  report.files = narrow<int>(shards.size());
  comm::all_or_none(comm, "finishing the folder of the model", [&] {
    if (comm.rank() != 0) return;
    std::vector<std::string> names;
    names.reserve(shards.size());
    for (const Shard& shard : shards) names.push_back(shard.name);
    remove_parameters(folder, names);
    fs::remove(folder / "adapter_config.json");
    write_settings(folder, config, options);
    if (shards.size() > 1)
      write_file_atomically(folder / "model.safetensors.index.json", index_of(shards).dump(2) + "\n");
    for (TemporaryFile& file : files) file.commit();
  });
  return report;
}

}  // namespace cartan::store
