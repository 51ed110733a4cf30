// The mesh of ranks as plain data: axes pp, dp, cp, tp, outermost first; tp varies fastest.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace cartan::comm {

enum class Axis { pp, dp, cp, tp };
inline constexpr std::array<Axis, 4> kAxes{Axis::pp, Axis::dp, Axis::cp, Axis::tp};
std::string_view name_of(Axis axis);

struct MeshShape {
  int pp = 1, dp = 0, cp = 1, tp = 1;  ///< dp = 0: the ranks that are left
  int size() const { return pp * dp * cp * tp; }
  std::array<int, 4> extents() const { return {pp, dp, cp, tp}; }
};

/// Fills in dp = 0 and checks that pp * dp * cp * tp equals the ranks. Throws ConfigError that says which
/// values would fit.
MeshShape resolve_mesh(MeshShape requested, int world_size);

struct MeshCoordinate {
  int pp = 0, dp = 0, cp = 0, tp = 0;
  friend bool operator==(const MeshCoordinate&, const MeshCoordinate&) = default;
};

MeshCoordinate coordinate_of(const MeshShape& shape, int rank);
int rank_of(const MeshShape& shape, const MeshCoordinate& at);

/// "tp[pp=0,dp=1,cp=0]": the group of `axis` that holds `at`; "dp.cp[pp=0,tp=1]" for the fused plane.
std::string group_name(Axis axis, const MeshCoordinate& at);
std::string plane_name(const MeshCoordinate& at);
/// "pp 1 x dp 4 x cp 1 x tp 1".
std::string to_string(const MeshShape& shape);

}  // namespace cartan::comm
