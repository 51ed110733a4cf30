// Checkpoints: one HDF5 file of logical tensors, written together by every rank, readable by any mesh.
//
//   /model/NAME, /optimizer/exp_avg/NAME, /optimizer/exp_avg_sq/NAME   one dataset a tensor, named by its
//   parameter /state       JSON text: step, data position, random counters, resolved configuration, ...
//   /tensors     the tensors' paths in the writer's order, one a line
//   /checksums   XXH3 of each 256 KiB of each tensor
//
// A save goes to a temporary name; then sync, closing mark, sync, rename, directory sync: a file under its
// final name is complete. The bytes of the file depend on what is saved only, not on the ranks that saved it.
// docs/checkpoint-format.md describes the file to the byte.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cartan/comm/communicator.hpp"
#include "cartan/core/json_fwd.hpp"
#include "cartan/core/types.hpp"

namespace cartan::store {

/// To be called before MPI_Init, while the process has one thread: makes Open MPI prefer ROMIO to its own
/// MPI-IO, which is slower and ignores striping hints. What the user set in the environment stays. Other MPIs
/// are not affected.
void prepare_environment();

/// One logical tensor of the file. `path` as "model/lm_head.weight": at least one folder, then the name.
struct TensorInfo {
  std::string path;
  DType dtype = DType::f32;
  std::vector<Index> shape;
  Index elements() const;
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype); }
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

/// A contiguous range of a tensor's elements (row-major order) in host memory: what a flat shard holds of it.
struct Slab {
  std::size_t tensor = 0;  ///< index in the list of tensors
  Index first = 0, count = 0;
  void* data = nullptr;  ///< count elements of the tensor's dtype
};

struct WriteOptions {
  std::vector<std::string> io_hints;  ///< MPI-IO hints KEY=VALUE; a word without "=" is a ConfigError
};

struct WriteReport {
  std::size_t bytes = 0;  ///< of the whole file
  double seconds = 0;     ///< until the file has its name and both are on disk
  /// Every byte of the tensors went through collective MPI-IO calls. False for a group of one, which uses
  /// plain writes and needs no MPI.
  bool collective = false;
};

/// Writes a checkpoint. Every rank passes the same tensors and its own slabs; together the slabs cover each
/// tensor exactly once (a rank may have none; anything else is an InternalError that names tensor and
/// elements). Rank 0's state is stored. Parent folders are made. Collective over `comm`, which nothing else
/// uses meanwhile.
///
/// Throws on every rank or on none: the rank that failed says what and why (IoError: disk full, quota,
/// permission, ...), the others throw the same class and name that rank. The temporary file is then gone and
/// an older file of the name is as it was.
///
/// Extra memory a rank: about 100 MiB where ranks hold similar shares, whatever the sizes; rank 0 also the
/// head of the file (8 bytes for each 256 KiB of tensors).
WriteReport write_checkpoint(const std::filesystem::path& path, const Json& state,
                             std::span<const TensorInfo> tensors, std::span<const Slab> slabs,
                             comm::Communicator& comm, const WriteOptions& options);

/// An open checkpoint for one process; needs no MPI. The const members may be called from several threads at
/// once.
class CheckpointReader {
 public:
  /// Opens and checks all but the tensors' values. Throws MissingError, IoError, or DataError: not a
  /// checkpoint, truncated, damaged, never finished, of a newer format.
  explicit CheckpointReader(const std::filesystem::path& path);
  CheckpointReader(CheckpointReader&&) noexcept;
  CheckpointReader& operator=(CheckpointReader&&) noexcept;
  ~CheckpointReader();

  const std::filesystem::path& path() const;
  /// Of the whole file.
  std::size_t file_bytes() const;
  const Json& state() const;
  /// In the order in which they were written.
  const std::vector<TensorInfo>& tensors() const;
  bool has(const std::string& path) const;
  /// Throws DataError that names the tensor and the file.
  const TensorInfo& tensor(const std::string& path) const;
  /// Reads elements [first, first + count) of a tensor, row-major, in its dtype. Checksums are not compared
  /// here.
  void read(const std::string& path, Index first, Index count, void* out) const;
  /// Reads everything once and compares every checksum. Throws DataError that names the tensor and the
  /// element range.
  void verify() const;
  /// Verifies part `part` of `parts` of the file only, so that ranks share the work.
  void verify_part(int part, int parts) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// For people and scripts: path, format, bytes, parameters, step, tokens, state, tensors (name, dtype, shape,
/// bytes).
Json describe(const CheckpointReader& reader);

/// The checkpoints of a run directory: DIR/checkpoints/step-N.h5.
std::filesystem::path checkpoint_path(const std::filesystem::path& run_dir, Index step);
/// Steps for which a file exists, ascending. Temporary names are not listed.
std::vector<Index> checkpoint_steps(const std::filesystem::path& run_dir);

struct FoundCheckpoint {
  std::filesystem::path path;
  Index step = 0;
  std::vector<std::string> rejected;  ///< newer files that were passed over: "PATH: why"
};
/// The newest file that is complete and verified; none if the run has no checkpoint yet. Collective: ranks
/// share the verification and agree; `rejected` is the same everywhere. Throws DataError on every rank if
/// there are checkpoints but none is good: to start from step 0 then is the user's decision.
std::optional<FoundCheckpoint> find_newest_good(const std::filesystem::path& run_dir,
                                                comm::Communicator& comm);
/// Deletes all but the newest `keep` (0: keeps all) and left-over temporary files of dead writers: of this
/// host, if the process is gone; of another, if nothing was written for an hour. For one rank. What cannot be
/// deleted is reported as a warning in the log.
void remove_old(const std::filesystem::path& run_dir, int keep);

/// Saves beside the training: takes a copy of the slabs, which lie in the device's memory, into a bounded
/// host buffer, then writes from one thread over a communicator of its own. save() and wait() are collective.
class AsyncWriter {
 public:
  /// `comm` must be used by nobody else; with more than one rank, MPI must give MPI_THREAD_MULTIPLE. The
  /// buffer (as large as this rank's slabs, kept between saves) is booked in `device`'s ledger, kind io.
  AsyncWriter(std::unique_ptr<comm::Communicator> comm, device::Device& device, WriteOptions options);
  /// Waits; a failure that nobody asked for is logged.
  ~AsyncWriter();
  /// Waits for the save before, copies, returns. A failure of the save before is thrown here; nothing is then
  /// started.
  void save(const std::filesystem::path& path, Json state, std::vector<TensorInfo> tensors,
            std::vector<Slab> slabs);
  /// Waits until nothing is in flight; throws what failed. The report of the latest save, if any.
  std::optional<WriteReport> wait();
  /// Without waiting: the report of a save that has completed since the last call; throws if it failed. Not
  /// collective: ranks may see the end of a save at different calls.
  std::optional<WriteReport> poll();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cartan::store
