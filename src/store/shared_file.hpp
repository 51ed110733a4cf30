// The file that the ranks of a group write together: collective MPI-IO, or plain writes where the group is
// one rank.
//
// Pieces are runs of whole blocks, large and owned by one rank each, so MPI-IO is told not to gather them on
// a few ranks first (romio_cb_write): that would copy every byte once more, and in ROMIO a rank that fails in
// the middle of a gathered write leaves the others waiting. Each piece is a call of its own, on plain bytes:
// to write many by one call takes derived datatypes, and after a failed write ROMIO 3.2.1 confuses those with
// later ones and writes to wrong places.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cartan/comm/communicator.hpp"

namespace cartan::store {

/// Bytes of this rank for one place in the file.
struct Piece {
  std::uint64_t position = 0;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;  ///< less than 2 GiB: MPI counts are int
};

class SharedFile {
 public:
  virtual ~SharedFile() = default;
  /// Every rank writes one piece, or none (a Piece of no bytes). Collective. Throws IoError on the rank whose
  /// piece could not be written.
  virtual void write(const Piece& piece) = 0;
  /// Brings everything to disk and closes; to be called even if the file is going to be thrown away.
  /// Collective.
  virtual void sync_and_close() = 0;
  /// Whether write() is a collective call of MPI-IO.
  virtual bool collective() const = 0;
};

/// Opens an existing file. Collective: throws on every rank or on none.
std::unique_ptr<SharedFile> open_shared_file(const std::filesystem::path& path, comm::Communicator& comm,
                                             const std::vector<std::string>& io_hints);

}  // namespace cartan::store
