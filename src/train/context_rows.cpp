#include "train/context_rows.hpp"

#include <span>
#include <vector>

#include "cartan/core/error.hpp"
#include "cartan/core/narrow.hpp"

namespace cartan::train {
namespace {

/// First and last position and document start of a chunk.
struct Edge {
  std::int32_t first = 0, last = 0, first_start = 0, last_start = 0;
};

}  // namespace

data::Batch rows_of_rank(const data::Batch& whole, int rank, int ranks) {
  const Index chunk = whole.seq / (2 * ranks);
  CARTAN_ASSERT(chunk * 2 * ranks == whole.seq);
  data::Batch rows;
  rows.sequences = whole.sequences;
  rows.seq = 2 * chunk;
  for (Index s = 0; s < whole.sequences; ++s)
    for (const int number : {rank, 2 * ranks - 1 - rank}) {
      const auto begin = narrow<std::ptrdiff_t>(s * whole.seq + number * chunk);
      const auto copy = [&](const std::vector<std::int32_t>& from, std::vector<std::int32_t>& to) {
        to.insert(to.end(), from.begin() + begin, from.begin() + begin + chunk);
      };
      copy(whole.tokens, rows.tokens);
      copy(whole.targets, rows.targets);
      copy(whole.positions, rows.positions);
      copy(whole.document_start, rows.document_start);
      if (!whole.window_start.empty()) copy(whole.window_start, rows.window_start);
      if (!whole.row_numbers.empty()) copy(whole.row_numbers, rows.row_numbers);
    }
  return rows;
}

void check_rows(const data::Batch& rows, comm::Communicator& comm) {
  const int n = comm.size();
  const Index chunk = rows.seq / 2;
  std::vector<Edge> edges;
  for (Index part = 0; part < 2 * rows.sequences; ++part) {
    const auto begin = narrow<std::size_t>(part * chunk), last = narrow<std::size_t>((part + 1) * chunk - 1);
    edges.push_back(
        {rows.positions[begin], rows.positions[last], rows.document_start[begin], rows.document_start[last]});
  }
  // Every rank sees all edges, so all come to the same verdict.
  std::vector<Edge> all(edges.size() * narrow<std::size_t>(n));
  comm.all_gather_host(std::as_bytes(std::span(edges)), std::as_writable_bytes(std::span(all)));
  const auto owner = [&](int number) { return number < n ? number : 2 * n - 1 - number; };
  const auto edge = [&](Index s, int number) {
    return all[narrow<std::size_t>(owner(number)) * edges.size() +
               narrow<std::size_t>(2 * s + (number < n ? 0 : 1))];
  };
  for (Index s = 0; s < rows.sequences; ++s)
    for (int number = 1; number < 2 * n; ++number) {
      const Edge before = edge(s, number - 1), here = edge(s, number);
      const bool continues = here.first == before.last + 1 && here.first_start == before.last_start;
      const bool begins = here.first == 0 && here.first_start == narrow<std::int32_t>(number * chunk);
      if (continues || begins) continue;
      throw DataError(
          "{}: rank {} begins a chunk at position {} of its document, but rank {}, whose chunk comes before, "
          "ended at "
          "{}: the ranks do not have the same data",
          comm.name(), owner(number), here.first, owner(number - 1), before.last);
    }
}

}  // namespace cartan::train
