// A sort, and for each sample a search among the free spaces that occur.
#include "cartan/data/packing.hpp"

#include <algorithm>
#include <map>

#include "cartan/core/error.hpp"
#include "cartan/core/random.hpp"

namespace cartan::data {
namespace {

/// A stream of random numbers that no epoch of a corpus uses.
constexpr std::uint64_t kPackingStream = ~std::uint64_t{0};

bool has_target(const IndexedDataset& dataset, Index begin, Index places) {
  for (Index t = begin + 1; t <= begin + places; ++t)
    if (dataset.is_counted(t)) return true;
  return false;
}

/// Numbers of samples, the longest first.
std::vector<Index> longest_first(std::span<const Index> places, std::uint64_t seed) {
  std::vector<Index> sorted(places.size());
  if (places.empty()) return sorted;
  const Permutation order(places.size(), seed, kPackingStream);
  for (std::size_t i = 0; i < places.size(); ++i) sorted[i] = static_cast<Index>(order(i));
  std::stable_sort(sorted.begin(), sorted.end(), [&](Index a, Index b) {
    return places[static_cast<std::size_t>(a)] > places[static_cast<std::size_t>(b)];
  });
  return sorted;
}

/// For each sample, in the order given, the row with the least free space into which it fits.
std::vector<Index> best_fit(std::span<const Index> order, std::span<const Index> places, Index seq,
                            Index& rows) {
  std::vector<Index> row_of(order.size());
  std::map<Index, std::vector<Index>> with_space;  // rows that are not full, by their free space
  for (const Index sample : order) {
    const Index length = places[static_cast<std::size_t>(sample)];
    const auto fitting = with_space.lower_bound(length);
    Index row = rows, space = seq;
    if (fitting == with_space.end()) {
      ++rows;
    } else {
      space = fitting->first;
      row = fitting->second.back();
      fitting->second.pop_back();
      if (fitting->second.empty()) with_space.erase(fitting);
    }
    row_of[static_cast<std::size_t>(sample)] = row;
    if (space > length) with_space[space - length].push_back(row);
  }
  return row_of;
}

std::vector<Index> next_fit(std::span<const Index> places, Index seq, Index& rows) {
  std::vector<Index> row_of;
  row_of.reserve(places.size());
  Index space = 0;
  for (const Index length : places) {
    if (length > space) {
      ++rows;
      space = seq;
    }
    space -= length;
    row_of.push_back(rows - 1);
  }
  return row_of;
}

}  // namespace

std::span<const Index> Packing::row(Index number) const {
  const auto place = static_cast<std::size_t>(number);
  return std::span(samples).subspan(static_cast<std::size_t>(row_begin[place]),
                                    static_cast<std::size_t>(row_begin[place + 1] - row_begin[place]));
}

std::string to_string(const Packing& packing, Index seq) {
  std::string text = fmt::format("{} samples in {} sequences, {:.1f} % of their places filled",
                                 packing.samples.size(), packing.rows(),
                                 100.0 * static_cast<double>(packing.places) /
                                     static_cast<double>(std::max<Index>(1, packing.rows() * seq)));
  if (packing.cut > 0) text += fmt::format("; {} longer ones are cut to {} tokens", packing.cut, seq + 1);
  if (packing.left_out > 0)
    text += fmt::format("; {} are left out, none of whose tokens {}counts", packing.left_out,
                        packing.cut > 0 ? "that are left " : "");
  return text;
}

Index packed_places(const IndexedDataset& dataset, Index document, Index seq) {
  return std::min(std::max<Index>(0, dataset.document_tokens(document).size() - 1), seq);
}

Packing pack(const IndexedDataset& dataset, IndexRange documents, Index seq, bool shuffle,
             std::uint64_t seed) {
  CARTAN_ASSERT(dataset.has_mask() && seq > 0);
  Packing packing;
  std::vector<Index> kept, places;
  for (Index document = documents.begin; document < documents.end; ++document) {
    const IndexRange range = dataset.document_tokens(document);
    const Index length = packed_places(dataset, document, seq);
    if (!has_target(dataset, range.begin, length)) {
      ++packing.left_out;
      continue;
    }
    packing.cut += range.size() - 1 > seq ? 1 : 0;
    packing.places += length;
    kept.push_back(document);
    places.push_back(length);
  }
  std::vector<Index> order(kept.size());
  Index rows = 0;
  std::vector<Index> row_of;
  if (shuffle) {
    order = longest_first(places, seed);
    row_of = best_fit(order, places, seq, rows);
  } else {
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<Index>(i);
    row_of = next_fit(places, seq, rows);
  }
  packing.row_begin.assign(static_cast<std::size_t>(rows) + 1, 0);
  for (const Index row : row_of) ++packing.row_begin[static_cast<std::size_t>(row) + 1];
  for (std::size_t row = 1; row < packing.row_begin.size(); ++row)
    packing.row_begin[row] += packing.row_begin[row - 1];
  std::vector<Index> next = packing.row_begin;
  packing.samples.resize(kept.size());
  for (const Index sample : order) {
    const auto row = static_cast<std::size_t>(row_of[static_cast<std::size_t>(sample)]);
    packing.samples[static_cast<std::size_t>(next[row]++)] = kept[static_cast<std::size_t>(sample)];
  }
  return packing;
}

}  // namespace cartan::data
