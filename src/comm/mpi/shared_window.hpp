// Memory that all ranks of a group on one node see: a part for each rank, in one MPI_Win_allocate_shared
// window.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "comm/mpi/handles.hpp"

namespace cartan::comm {

class SharedWindow {
 public:
  /// Collective over `comm`, all of whose ranks share a node, as is the destructor. Each rank asks for its
  /// own size; the parts start at cache lines and hold zeros only where they were never written. Throws
  /// EnvironmentError that names `label` on every rank if the node's shared memory cannot hold it.
  SharedWindow(MPI_Comm comm, const std::string& comm_name, std::size_t size_bytes, std::string_view label);

  std::byte* base(int rank) const { return bases_[static_cast<std::size_t>(rank)]; }
  std::byte* own() const { return base(rank_); }
  std::size_t size_bytes() const { return size_bytes_; }
  bool contains(const void* data, std::size_t size_bytes) const;

 private:
  int rank_ = 0;
  std::size_t size_bytes_;
  WinHandle win_;
  std::vector<std::byte*> bases_;
};

}  // namespace cartan::comm
