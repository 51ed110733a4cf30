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
  /// "RxC": tensor parallelism over a grid of R rows and C columns, tp = R * C. Empty: one row.
  std::string tp_grid{};
  int rows = 1;  ///< of the grid; resolve_mesh reads them from tp_grid

  int size() const { return pp * dp * cp * tp; }
  /// Parts of a sequence: rows of a grid cut it as cp does, and stand next to cp's ranks.
  int context() const { return cp * rows; }
  /// Parts of heads, feed-forward columns and vocabulary.
  int columns() const { return tp / rows; }
  /// Of the groups, by Axis.
  std::array<int, 4> extents() const { return {pp, dp, context(), columns()}; }
};

/// Fills in dp = 0 and what tp_grid says, and checks that pp * dp * cp * tp equals the ranks. Throws
/// ConfigError that says which values would fit.
MeshShape resolve_mesh(MeshShape requested, int world_size);

/// A place in the groups: cp < context(), tp < columns().
struct MeshCoordinate {
  int pp = 0, dp = 0, cp = 0, tp = 0;
  friend bool operator==(const MeshCoordinate&, const MeshCoordinate&) = default;
};

MeshCoordinate coordinate_of(const MeshShape& shape, int rank);
int rank_of(const MeshShape& shape, const MeshCoordinate& at);

/// "tp[pp=0,dp=1,cp=0]": the group of `axis` that holds `at`; "dp.cp[pp=0,tp=1]" for the fused plane.
std::string group_name(Axis axis, const MeshCoordinate& at);
std::string plane_name(const MeshCoordinate& at);
/// "pp 1 x dp 4 x cp 1 x tp 1", "pp 1 x dp 1 x cp 1 x tp 4 (2x2)".
std::string to_string(const MeshShape& shape);

/// How the groups of a mesh on GPUs are watched. A failure that NCCL notices, and a call that takes too long,
/// end every wait of the rank for the GPU: what is called next throws PeerError or what fits.
struct MeshWatch {
  double interval_s = 0.1;  ///< between two looks of a thread; 0: nobody looks
  double timeout_s = 0;     ///< for a call on the GPU, from its beginning there; 0: as long as it takes
  double grace_s = 10;  ///< after a failure, for the rank to end by the exception; then its process is ended
};

}  // namespace cartan::comm
