// A save from start to end: agree, lay out, write in rounds, seal, rename.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>

#include "blocks.hpp"
#include "cartan/core/error.hpp"
#include "cartan/core/hash.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/store/checkpoint.hpp"
#include "file_access.hpp"
#include "fragment_exchange.hpp"
#include "group.hpp"
#include "head.hpp"
#include "shared_file.hpp"
#include "shares.hpp"
#include "temporary_file.hpp"
#include "user_block.hpp"

namespace cartan::store {
namespace {

/// Every rank must describe the same tensors: positions in the file follow from them. Collective.
void check_same_tensors(std::span<const TensorInfo> tensors, comm::Communicator& comm) {
  std::string text;
  for (const TensorInfo& tensor : tensors)
    text += fmt::format("{} {} {}\n", tensor.path, name_of(tensor.dtype), fmt::join(tensor.shape, ","));
  const auto hash = static_cast<std::int64_t>(hash_text(text) >> 1);
  if (comm.max(hash) != -comm.max(-hash))
    throw InternalError("ranks that write a checkpoint together list different tensors");
}

/// The checksum of one block, on its way to rank 0.
struct BlockHash {
  Index block = 0;
  std::uint64_t hash = 0;
};

/// Writes the tensors' values in rounds and takes their checksums.
class ValueWriter {
 public:
  ValueWriter(std::span<const TensorInfo> tensors, const BlockTable& table, const Shares& shares,
              std::uint64_t tensors_begin, comm::Communicator& comm, Agreement& agreement)
      : tensors_(tensors),
        table_(table),
        shares_(shares),
        tensors_begin_(tensors_begin),
        comm_(comm),
        agreement_(agreement) {}

  /// Returns the checksums of what this rank wrote. Collective; a failure of any rank ends the rounds on all
  /// and stays in the agreement.
  std::vector<BlockHash> write_to(SharedFile& file) {
    const auto exchange = make_fragment_exchange(tensors_, table_, shares_, comm_, agreement_);
    if (agreement_.anyone_failed()) return {};
    for (Index round = 0; round < exchange->rounds(); ++round) {
      exchange->carry(round);
      std::vector<BlockRun> runs;
      agreement_.attempt([&] {
        runs = exchange->blocks();
        take_whole(round, exchange->rounds(), runs);
        std::sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      });
      if (!write_runs(file, runs)) break;
    }
    return std::move(hashes_);
  }

 private:
  /// The round's part of the runs that this rank holds: an equal number, they need no memory.
  void take_whole(Index round, Index rounds, std::vector<BlockRun>& runs) const {
    const LeafRange part = leaf_range(std::ssize(shares_.whole), round, rounds);
    runs.insert(runs.end(), shares_.whole.begin() + part.begin, shares_.whole.begin() + part.end);
  }

  /// Every rank makes every call, one that has no more runs for no bytes. False: some rank has failed.
  bool write_runs(SharedFile& file, const std::vector<BlockRun>& runs) {
    constexpr Index kFailed = std::numeric_limits<Index>::max();
    const Index calls = comm_.max(agreement_.failed_here() ? kFailed : std::ssize(runs));
    if (calls == kFailed) return false;
    for (Index i = 0; i < calls; ++i) {
      Piece piece;
      if (i < std::ssize(runs) && !agreement_.failed_here())
        piece = take_hashes(runs[static_cast<std::size_t>(i)]);
      try {
        file.write(piece);
      } catch (...) {
        agreement_.attempt([] { throw; });
      }
    }
    return true;
  }

  Piece take_hashes(const BlockRun& run) {
    std::size_t bytes = 0;
    for (Index number = run.first; number < run.first + run.count; ++number) {
      const std::size_t size = table_.block(number).bytes;
      hashes_.push_back({number, hash_bytes({run.data + bytes, size})});
      bytes += size;
    }
    return {tensors_begin_ + table_.block_begin(run.first), run.data, bytes};
  }

  std::span<const TensorInfo> tensors_;
  const BlockTable& table_;
  const Shares& shares_;
  std::uint64_t tensors_begin_;
  comm::Communicator& comm_;
  Agreement& agreement_;
  std::vector<BlockHash> hashes_;
};

/// The table of checksums from what ranks sent. Throws InternalError where a block came never or twice.
std::vector<std::uint64_t> collect_checksums(std::span<const std::byte> messages,
                                             std::span<const TensorInfo> tensors, const BlockTable& table) {
  const auto name = [&](Index number) {
    const Block block = table.block(number);
    return name_range(tensors, table, block.begin, block.bytes);
  };
  std::vector<std::uint64_t> checksums(static_cast<std::size_t>(table.blocks()));
  std::vector<bool> seen(checksums.size(), false);
  for (; !messages.empty(); messages = messages.subspan(sizeof(BlockHash))) {
    BlockHash record;
    std::memcpy(&record, messages.data(), sizeof record);
    const auto number = static_cast<std::size_t>(record.block);
    if (seen[number]) throw InternalError("{} are in several slabs", name(record.block));
    seen[number] = true;
    checksums[number] = record.hash;
  }
  const auto missing = std::find(seen.begin(), seen.end(), false);
  if (missing != seen.end()) throw InternalError("{} are in no rank's slabs", name(missing - seen.begin()));
  return checksums;
}

/// Writes the head, then, with everything else on disk, the closing mark. For one rank.
void seal_file(TemporaryFile& temporary, Head& head, std::span<const std::uint64_t> checksums,
               std::uint64_t file_bytes) {
  head.seal(checksums, file_bytes);
  write_at(temporary.fd(), temporary.path(), kUserBlockBytes, head.bytes().subspan(kUserBlockBytes));
  sync_file(temporary.fd(), temporary.path());
  write_at(temporary.fd(), temporary.path(), 0, head.bytes().first(kUserBlockBytes));
  sync_file(temporary.fd(), temporary.path());
  temporary.commit();
}

}  // namespace

WriteReport write_checkpoint(const std::filesystem::path& path, const Json& state,
                             std::span<const TensorInfo> tensors, std::span<const Slab> slabs,
                             comm::Communicator& comm, const WriteOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const bool root = comm.rank() == 0;
  check_same_tensors(tensors, comm);
  const BlockTable table(tensors);  // the same on every rank, and so is what it throws

  Agreement agreement(comm, fmt::format("writing {}", path.string()));
  Shares shares;
  std::optional<Head> head;
  TemporaryFile temporary;
  agreement.attempt([&] {
    shares = split_slabs(tensors, table, slabs);
    if (!root) return;
    temporary = TemporaryFile(path);
    set_size(temporary.fd(), path, table.total_bytes());
    try {
      head.emplace(state, tensors, table);
    } catch (const IoError& error) {
      throw IoError("{}: cannot lay out its head: {}", path.string(), error.what());
    }
    set_size(temporary.fd(), path, head->tensors_begin() + table.total_bytes());
  });
  agreement.settle();
  std::uint64_t tensors_begin = root ? head->tensors_begin() : 0;
  comm.broadcast_host(std::as_writable_bytes(std::span(&tensors_begin, 1)), 0);
  const std::filesystem::path temporary_path = broadcast_text(comm, temporary.path().string());
  const std::uint64_t file_bytes = tensors_begin + table.total_bytes();

  const auto file = open_shared_file(temporary_path, comm, options.io_hints);
  const auto hashes = ValueWriter(tensors, table, shares, tensors_begin, comm, agreement).write_to(*file);
  try {
    file->sync_and_close();
  } catch (...) {
    agreement.attempt([] { throw; });
  }
  agreement.settle();

  const auto bytes = std::as_bytes(std::span(hashes));
  const auto gathered = gather_to_root(comm, {bytes.begin(), bytes.end()});
  agreement.attempt([&] {
    if (root) seal_file(temporary, *head, collect_checksums(gathered, tensors, table), file_bytes);
  });
  agreement.settle();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return {.bytes = file_bytes, .seconds = elapsed.count(), .collective = file->collective()};
}

}  // namespace cartan::store
