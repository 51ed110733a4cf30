// Arithmetic of the mesh: no MPI here, so that planner, tests and reports read the same numbers.
#include "cartan/comm/mesh.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "cartan/core/error.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/core/types.hpp"

namespace cartan::comm {
namespace {

std::vector<Index> divisors(Index number) {
  std::vector<Index> found;
  for (Index d = 1; d <= number; ++d) {
    if (number % d == 0) found.push_back(d);
  }
  return found;
}

/// "1, 2 or 4".
std::string alternatives(const std::vector<Index>& values) {
  std::string text;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text += i + 1 == values.size() ? " or " : ", ";
    text += std::to_string(values[i]);
  }
  return text;
}

void check_signs(const MeshShape& shape) {
  Problems problems;
  const std::array<int, 4> extents{shape.pp, shape.dp, shape.cp, shape.tp};
  for (Axis axis : kAxes) {
    const int extent = extents[static_cast<std::size_t>(axis)];
    if (axis == Axis::dp && extent < 0) {
      problems.add("mesh.dp = {}: use 1 or more, or 0 for the ranks that are left", extent);
    } else if (axis != Axis::dp && extent < 1) {
      problems.add("mesh.{} = {}: use 1 or more", name_of(axis), extent);
    }
  }
  problems.throw_if_any("the mesh");
}

/// The number at the start of `text`, which it is cut from; 0 where there is none from 1 to 2^20.
int take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  text.remove_prefix(narrow<std::size_t>(end - text.data()));
  return error == std::errc() && number <= 1 << 20 ? std::max(number, 0) : 0;
}

void read_grid(MeshShape& shape) {
  shape.rows = 1;
  if (shape.tp_grid.empty()) return;
  std::string_view rest = shape.tp_grid;
  const int rows = take_number(rest);
  const bool has_sign = rest.starts_with('x');
  if (has_sign) rest.remove_prefix(1);
  const int columns = take_number(rest);
  if (rows == 0 || !has_sign || columns == 0 || !rest.empty())
    throw ConfigError("mesh.tp-grid = {}: use ROWSxCOLUMNS, for example 2x2", shape.tp_grid);
  const int ranks = narrow<int>(Index{rows} * columns);
  if (shape.tp != 1 && shape.tp != ranks)
    throw ConfigError("mesh.tp-grid = {} has {} ranks, but mesh.tp = {}: leave mesh.tp away, or use {}",
                      shape.tp_grid, ranks, shape.tp, ranks);
  shape.tp = ranks;
  shape.rows = rows;
}

/// What the user may change when pp * cp * tp does not divide the ranks.
std::string choices(const MeshShape& shape, Index world_size) {
  const Index fixed = Index{shape.pp} * shape.cp;
  if (world_size % fixed == 0) {
    return fmt::format("with pp = {} and cp = {}, tp may be {}", shape.pp, shape.cp,
                       alternatives(divisors(world_size / fixed)));
  }
  return fmt::format("pp*cp*tp must be {}", alternatives(divisors(world_size)));
}

}  // namespace

std::string_view name_of(Axis axis) {
  static constexpr std::array<std::string_view, 4> names{"pp", "dp", "cp", "tp"};
  return names.at(static_cast<std::size_t>(axis));
}

MeshShape resolve_mesh(MeshShape requested, int world_size) {
  CARTAN_ASSERT(world_size > 0);
  check_signs(requested);
  read_grid(requested);
  const Index inner = Index{requested.pp} * requested.cp * requested.tp;
  const bool divides = world_size % inner == 0;
  if (requested.dp == 0) {
    if (!divides) {
      throw ConfigError("mesh pp*cp*tp = {}*{}*{} = {} does not divide the {} ranks of the job: {}",
                        requested.pp, requested.cp, requested.tp, inner, world_size,
                        choices(requested, world_size));
    }
    requested.dp = narrow<int>(world_size / inner);
    return requested;
  }
  const Index product = inner * requested.dp;
  if (product == world_size) return requested;
  throw ConfigError("mesh pp*dp*cp*tp = {}*{}*{}*{} = {}, but the job has {} ranks: {}, or start {} ranks",
                    requested.pp, requested.dp, requested.cp, requested.tp, product, world_size,
                    divides
                        ? fmt::format("use mesh.dp = {} (or 0, the ranks that are left)", world_size / inner)
                        : choices(requested, world_size) + " (leave mesh.dp = 0, the ranks that are left)",
                    product);
}

MeshCoordinate coordinate_of(const MeshShape& shape, int rank) {
  CARTAN_ASSERT(rank >= 0 && rank < shape.size());
  MeshCoordinate at;
  at.tp = rank % shape.columns();
  rank /= shape.columns();
  at.cp = rank % shape.context();
  rank /= shape.context();
  at.dp = rank % shape.dp;
  at.pp = rank / shape.dp;
  return at;
}

int rank_of(const MeshShape& shape, const MeshCoordinate& at) {
  return ((at.pp * shape.dp + at.dp) * shape.context() + at.cp) * shape.columns() + at.tp;
}

std::string group_name(Axis axis, const MeshCoordinate& at) {
  const std::array<int, 4> position{at.pp, at.dp, at.cp, at.tp};
  std::string others;
  for (Axis other : kAxes) {
    if (other == axis) continue;
    if (!others.empty()) others += ',';
    others += fmt::format("{}={}", name_of(other), position[static_cast<std::size_t>(other)]);
  }
  return fmt::format("{}[{}]", name_of(axis), others);
}

std::string plane_name(const MeshCoordinate& at) { return fmt::format("dp.cp[pp={},tp={}]", at.pp, at.tp); }

std::string to_string(const MeshShape& shape) {
  return fmt::format("pp {} x dp {} x cp {} x tp {}{}", shape.pp, shape.dp, shape.cp, shape.tp,
                     shape.rows == 1 ? "" : fmt::format(" ({})", shape.tp_grid));
}

}  // namespace cartan::comm
