// Tensor-core products and loads of matrices: the fragment layouts that the PTX manual documents, in C++.
#include <array>
#include <cstring>

#include "checker.hpp"
#include "warp_meetings.hpp"

namespace emu {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;

}  // namespace

void multiply_fragments(float (&d)[4], const float (&a)[8], const float (&b)[4], Where where) {
  struct Operands {
    std::array<float, 8> a;
    std::array<float, 4> b;
  };
  Operands mine;
  std::memcpy(mine.a.data(), a, sizeof a);
  std::memcpy(mine.b.data(), b, sizeof b);
  const Meeting meeting(kAllLanes, Sync::mma, &mine, sizeof mine, where);
  const unsigned g = self->lane / 4, t = self->lane % 4;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned half = i / 2, col = t * 2 + i % 2;  // rows g and g + 8
    float sum = 0;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned pair = k % 8 / 2, upper = k / 8, element = k % 2;
      const auto& left = meeting.of<Operands>(g * 4 + pair);
      const auto& right = meeting.of<Operands>(col * 4 + pair);
      sum += left.a[2 * (half + 2 * upper) + element] * right.b[2 * upper + element];
    }
    d[i] += sum;
  }
}

void load_matrices(unsigned (&r)[4], const void* shared_row, bool transposed, Where where) {
  using Row = std::array<unsigned short, 8>;
  Row mine;
  check_access(shared_row, sizeof mine, AccessKind::load, __builtin_return_address(0));
  std::memcpy(mine.data(), shared_row, sizeof mine);
  const Meeting meeting(kAllLanes, Sync::ldmatrix, mine.data(), sizeof mine, where);
  const unsigned g = self->lane / 4, t = self->lane % 4;
  for (unsigned i = 0; i < 4; ++i) {
    const auto element = [&](unsigned row, unsigned col) -> unsigned {
      return meeting.of<Row>(8 * i + row)[col];
    };
    const unsigned first = transposed ? element(2 * t, g) : element(g, 2 * t);
    const unsigned second = transposed ? element(2 * t + 1, g) : element(g, 2 * t + 1);
    r[i] = first | second << 16;
  }
}

}  // namespace emu
