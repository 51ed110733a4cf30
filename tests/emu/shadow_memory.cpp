#include "shadow_memory.hpp"

#include <sys/mman.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "fibers.hpp"
#include "memory.hpp"

namespace emu {
namespace {

constexpr std::size_t kBytesOfCell = 2;
constexpr std::uintptr_t kPage = 4096;
constexpr std::size_t kMostThreadVariables = std::size_t{4} << 20;

Cell* reserve_cells(std::size_t bytes_of_memory) {
  void* const cells = mmap(nullptr, bytes_of_memory / kBytesOfCell * sizeof(Cell), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (cells == MAP_FAILED) {
    std::perror("emu: cannot reserve addresses for the access checker");
    std::abort();
  }
  return static_cast<Cell*>(cells);
}

Cell* heap_cells() {
  static Cell* const cells = reserve_cells(static_cast<std::size_t>(heap.hi - heap.lo));
  return cells;
}

Cell* shared_cells() {
  static Cell* const cells = reserve_cells(Block::kMostSharedBytes + kMostThreadVariables);
  return cells;
}

/// Whole pages become fresh ones that cost nothing until they are touched.
void clear(Cell* first, std::size_t count) {
  const auto begin = reinterpret_cast<std::uintptr_t>(first), end = begin + count * sizeof(Cell);
  const std::uintptr_t first_page = (begin + kPage - 1) / kPage * kPage, last_page = end / kPage * kPage;
  if (first_page >= last_page) {
    std::memset(static_cast<void*>(first), 0, end - begin);
    return;
  }
  std::memset(reinterpret_cast<void*>(begin), 0, first_page - begin);
  std::memset(reinterpret_cast<void*>(last_page), 0, end - last_page);
  madvise(reinterpret_cast<void*>(first_page), last_page - first_page, MADV_DONTNEED);
}

// Never destroyed: the progress thread may outlive main.
std::map<const unsigned char*, Allocation>& allocations = *new std::map<const unsigned char*, Allocation>;

/// The last allocation found in a page, for the kernel's next access there. Allocations stay where they are
/// in the map.
std::array<const Allocation*, 1024> last_found{};

const Allocation*& last_found_near(const void* address) {
  return last_found[reinterpret_cast<std::uintptr_t>(address) / kPage % last_found.size()];
}

}  // namespace

void note_allocation(const void* data, std::size_t bytes, bool is_pinned) {
  const auto* const begin = static_cast<const unsigned char*>(data);
  allocations[begin] = {begin, begin + bytes, is_pinned};
}

void forget_allocation(const void* data) {
  const auto found = allocations.find(static_cast<const unsigned char*>(data));
  if (found == allocations.end()) return;
  clear(cell_of(data),
        (static_cast<std::size_t>(found->second.end - found->second.begin) + 1) / kBytesOfCell);
  allocations.erase(found);
  last_found.fill(nullptr);
}

const Allocation* allocation_of(const void* address, std::size_t bytes) {
  const Allocation*& near = last_found_near(address);
  if (near != nullptr && near->contains(address, bytes)) return near;
  const auto next = allocations.upper_bound(static_cast<const unsigned char*>(address));
  if (next == allocations.begin()) return nullptr;
  const Allocation& found = std::prev(next)->second;
  if (!found.contains(address, bytes)) return nullptr;
  return near = &found;
}

Cell* cell_of(const void* heap_address) {
  return heap_cells() +
         static_cast<std::size_t>(static_cast<const unsigned char*>(heap_address) - heap.lo) / kBytesOfCell;
}

Cell& dynamic_shared_cell(std::size_t offset) { return shared_cells()[offset / kBytesOfCell]; }
Cell& static_shared_cell(std::size_t offset) {
  if (offset >= kMostThreadVariables) {
    std::fprintf(stderr, "emu: thread_local variables of more than %zu bytes\n", kMostThreadVariables);
    std::abort();
  }
  return shared_cells()[(Block::kMostSharedBytes + offset) / kBytesOfCell];
}

}  // namespace emu
