// A save from start to end: agree, lay out, write in rounds, seal, rename.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <optional>

#include "blocks.hpp"
#include "cartan/core/error.hpp"
#include "cartan/core/hash.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/store/checkpoint.hpp"
#include "file_access.hpp"
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

/// Sends this rank's runs of whole blocks out over the rounds, equal in bytes.
class WholeBlockQueue {
 public:
  WholeBlockQueue(const std::vector<WholeBlocks>& runs, const BlockTable& table)
      : runs_(runs), table_(table) {
    for (const WholeBlocks& run : runs_) total_ += bytes_of(run);
  }
  Index rounds() const { return static_cast<Index>((total_ + kRoundBytes - 1) / kRoundBytes); }

  void take(Index round, Index rounds, std::uint64_t tensors_begin, std::vector<Piece>& pieces,
            std::vector<BlockHash>& hashes) {
    const std::uint64_t until =
        total_ / static_cast<std::uint64_t>(rounds) * static_cast<std::uint64_t>(round + 1);
    for (; next_ < runs_.size() && (taken_ < until || round + 1 == rounds); ++next_) {
      const WholeBlocks& run = runs_[next_];
      pieces.push_back({tensors_begin + table_.block_begin(run.first), run.data, bytes_of(run)});
      taken_ += bytes_of(run);
      const std::byte* data = run.data;
      for (Index number = run.first; number < run.first + run.count; ++number) {
        const std::size_t bytes = table_.block(number).bytes;
        hashes.push_back({number, hash_bytes({data, bytes})});
        data += bytes;
      }
    }
  }

 private:
  static constexpr std::uint64_t kRoundBytes = std::uint64_t{256} << 20;

  std::size_t bytes_of(const WholeBlocks& run) const {
    return table_.block_begin(run.first + run.count) - table_.block_begin(run.first);
  }

  const std::vector<WholeBlocks>& runs_;
  const BlockTable& table_;
  std::uint64_t total_ = 0, taken_ = 0;
  std::size_t next_ = 0;
};

/// Writes all values and returns the checksums of what this rank wrote. Collective; a failure of any rank
/// ends the rounds on all and stays in `agreement`.
std::vector<BlockHash> write_values(SharedFile& file, std::uint64_t tensors_begin,
                                    std::span<const TensorInfo> tensors, const BlockTable& table,
                                    const Shares& shares, comm::Communicator& comm, Agreement& agreement) {
  std::vector<BlockHash> hashes;
  WholeBlockQueue queue(shares.whole, table);
  const Index rounds = std::max<Index>(owner_rounds(table, comm.size()), comm.max(queue.rounds()));
  for (Index round = 0; round < rounds; ++round) {
    Outgoing outgoing = pack_fragments(shares, table, comm.size(), round);
    const auto incoming = exchange_counts(comm, outgoing.counts);
    agreement.attempt([&] {  // slabs that overlap many times could send more than MPI can count
      narrow<int>(std::accumulate(incoming.begin(), incoming.end(), std::int64_t{0}));
      narrow<int>(outgoing.bytes.size());
    });
    if (agreement.anyone_failed()) return hashes;
    const std::vector<std::byte> messages = exchange(comm, std::move(outgoing), incoming);

    std::optional<AssembledBlocks> assembled;
    std::vector<Piece> pieces;
    agreement.attempt([&] {
      assembled.emplace(tensors, table, owned_blocks(table, comm.rank(), comm.size(), round), messages);
      assembled->add_pieces(tensors_begin, pieces);
      assembled->add_hashes(hashes);
      queue.take(round, rounds, tensors_begin, pieces, hashes);
      std::sort(pieces.begin(), pieces.end(),
                [](const Piece& a, const Piece& b) { return a.position < b.position; });
    });
    // Also by a rank that has failed: the others are in this call.
    try {
      file.write(pieces);
    } catch (...) {
      agreement.attempt([] { throw; });
    }
  }
  return hashes;
}

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
    reserve_space(temporary.fd(), path, table.total_bytes());
    head.emplace(state, tensors, table);
    reserve_space(temporary.fd(), path, head->tensors_begin() + table.total_bytes());
  });
  agreement.settle();
  std::uint64_t tensors_begin = root ? head->tensors_begin() : 0;
  comm.broadcast_host(std::as_writable_bytes(std::span(&tensors_begin, 1)), 0);
  const std::filesystem::path temporary_path = broadcast_text(comm, temporary.path().string());
  const std::uint64_t file_bytes = tensors_begin + table.total_bytes();

  const auto file = open_shared_file(temporary_path, comm, options.io_hints);
  const auto hashes = write_values(*file, tensors_begin, tensors, table, shares, comm, agreement);
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
