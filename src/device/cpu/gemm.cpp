// Calls oneDNN's matmul. Each thread keeps the primitives it has made, by shape, so a call costs one look-up
// and no lock.
#include "device/cpu/gemm.hpp"

#include <algorithm>
#include <array>
#include <dnnl.hpp>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "cartan/core/error.hpp"
#include "cartan/core/narrow.hpp"
#include "device/cpu/kernels.hpp"

namespace cartan::device::cpu {
namespace {

using Memory = dnnl::memory;
using Type = dnnl::memory::data_type;

/// All that a primitive depends on. Strides are 0 for packed operands.
struct Shape {
  Index rows = 0, cols = 0, depth = 0;
  Index a_stride = 0, b_stride = 0;
  bool a_transposed = false, b_transposed = false, bf16 = false, accumulate = false;
  bool operator==(const Shape&) const = default;
};

struct ShapeHash {
  std::size_t operator()(const Shape& s) const {
    std::size_t h = 0;
    const auto flags =
        (s.a_transposed ? 1 : 0) + (s.b_transposed ? 2 : 0) + (s.bf16 ? 4 : 0) + (s.accumulate ? 8 : 0);
    for (const Index part : {s.rows, s.cols, s.depth, s.a_stride, s.b_stride, Index{flags}}) {
      h = (h ^ static_cast<std::size_t>(part)) * 0x9e3779b97f4a7c15ull;
      h ^= h >> 29;
    }
    return h;
  }
};

/// A primitive with the memory objects whose addresses change from call to call.
struct Primitive {
  dnnl::matmul matmul;
  Memory a, b, c, library_scratch;
  std::array<dnnl_exec_arg_t, 4> arguments;
};

// A run meets some hundred shapes; generation with ever new lengths could meet more.
constexpr std::size_t kMaxPrimitives = 4096;

struct ThreadState {
  dnnl::stream stream;
  std::unordered_map<Shape, Primitive, ShapeHash> primitives;
};

/// Blocks of equal size, a multiple of 32 but for the last.
Index depth_block(Index depth) {
  const Index blocks = ceil_div(depth, Gemm::kMaxDepth);
  return std::min<Index>(depth, round_up(ceil_div(depth, blocks), 32));
}

/// Whether the left factor, which has one block only, already lies as pack_a would write it.
bool is_packed(const Factor& a, Index depth, Index block) {
  return !a.transposed && a.dtype == DType::f32 && a.stride == depth && block == depth;
}

const void* element(const Factor& f, Index row, Index col) {
  return advance(f.data, f.dtype, f.transposed ? col * f.stride + row : row * f.stride + col);
}

}  // namespace

struct Gemm::Implementation {
  Bf16Products bf16_products;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::vector<ThreadState> threads;
  /// Layout of the packed right factor: panels of so many columns, rows padded to a multiple of pad_rows.
  /// 0: one panel of all columns, no padding.
  Index panel_cols = 0;
  static constexpr Index kPadRows = 16;

  Implementation(int thread_count, Bf16Products choice) : bf16_products(choice) {
    for (int i = 0; i < thread_count; ++i) threads.push_back({dnnl::stream(engine), {}});
    // oneDNN is asked once which layout it likes; everything else is then made for that layout.
    const Memory::desc a({kMaxRows, kMaxDepth}, Type::f32, Memory::format_tag::ab);
    const Memory::desc b({kMaxDepth, kMaxCols}, Type::f32, Memory::format_tag::any);
    const Memory::desc c({kMaxRows, kMaxCols}, Type::f32, Memory::format_tag::ab);
    const dnnl::matmul::primitive_desc probe({a, b, c}, engine);
    if (probe.weights_desc() == panels(kMaxDepth, kMaxCols)) panel_cols = 64;
  }

  static Memory::desc panels(Index depth, Index cols) {
    return {{depth, cols}, Type::f32, Memory::format_tag::BA16a64b};
  }

  Index packed_b_floats(Index cols, Index depth) const {
    if (panel_cols == 0) return cols * depth;
    return round_up(cols, panel_cols) * round_up(depth, kPadRows);
  }

  /// One at a time in the whole process: threads that ask for the same shape get one object from oneDNN's own
  /// cache, whose locks a thread sanitizer does not see.
  Primitive make(const Shape& s) const {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    const Type type = s.bf16 ? Type::bf16 : Type::f32;
    const auto strided = [&](Index rows, Index cols, Index stride, bool transposed) {
      return Memory::desc({rows, cols}, type, transposed ? Memory::dims{1, stride} : Memory::dims{stride, 1});
    };
    const bool packed = s.a_stride == 0;
    const Memory::desc a = strided(s.rows, s.depth, packed ? s.depth : s.a_stride, s.a_transposed);
    const Memory::desc b = !packed          ? strided(s.depth, s.cols, s.b_stride, s.b_transposed)
                           : panel_cols > 0 ? panels(s.depth, s.cols)
                                            : strided(s.depth, s.cols, s.cols, false);
    const Memory::desc c({s.rows, s.cols}, Type::f32, Memory::format_tag::ab);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (s.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const dnnl::matmul::primitive_desc description({a, b, c}, attributes, engine);
    const Memory::desc scratch = description.scratchpad_desc();
    if (scratch.get_size() > kLibraryBytes) {
      throw InternalError("oneDNN wants {} bytes of scratch for a product {}x{}x{}, {} are set aside",
                          scratch.get_size(), s.rows, s.cols, s.depth, kLibraryBytes);
    }
    Primitive p{dnnl::matmul(description),  Memory(a, engine, nullptr),       Memory(b, engine, nullptr),
                Memory(c, engine, nullptr), Memory(scratch, engine, nullptr), {}};
    p.arguments = {{{DNNL_ARG_SRC, p.a.get()},
                    {DNNL_ARG_WEIGHTS, p.b.get()},
                    {DNNL_ARG_DST, p.c.get()},
                    {DNNL_ARG_SCRATCHPAD, p.library_scratch.get()}}};
    return p;
  }

  void run(int thread, const Shape& shape, const void* a, const void* b, float* c,
           std::byte* library_scratch) {
    ThreadState& state = threads[static_cast<std::size_t>(thread)];
    auto found = state.primitives.find(shape);
    if (found == state.primitives.end()) {
      if (state.primitives.size() >= kMaxPrimitives) state.primitives.clear();
      found = state.primitives.emplace(shape, make(shape)).first;
    }
    const Primitive& p = found->second;
    dnnl_memory_set_data_handle(p.a.get(), const_cast<void*>(a));
    dnnl_memory_set_data_handle(p.b.get(), const_cast<void*>(b));
    dnnl_memory_set_data_handle(p.c.get(), c);
    dnnl_memory_set_data_handle(p.library_scratch.get(), library_scratch);
    const auto status = dnnl_primitive_execute(p.matmul.get(), state.stream.get(),
                                               static_cast<int>(p.arguments.size()), p.arguments.data());
    if (status != dnnl_success) {
      throw InternalError("oneDNN refused a product {}x{}x{} with status {}", shape.rows, shape.cols,
                          shape.depth, static_cast<int>(status));
    }
  }

  static void pack_a(const Factor& a, Index rows, Index begin, Index depth, float* out) {
    if (a.transposed) {
      pack_transposed(element(a, 0, begin), a.dtype, a.stride, depth, rows, out, depth);
    } else {
      pack_rows(element(a, 0, begin), a.dtype, a.stride, rows, depth, out, depth);
    }
  }

  void pack_b(const Factor& b, Index cols, Index begin, Index depth, float* out) const {
    const Index width = panel_cols > 0 ? panel_cols : cols;
    const Index padded_depth = panel_cols > 0 ? round_up(depth, kPadRows) : depth;
    for (Index first = 0; first < cols; first += width, out += padded_depth * width) {
      const Index count = std::min(width, cols - first);
      if (count < width || depth < padded_depth) std::fill(out, out + padded_depth * width, 0.0f);
      if (b.transposed) {
        pack_transposed(element(b, begin, first), b.dtype, b.stride, count, depth, out, width);
      } else {
        pack_rows(element(b, begin, first), b.dtype, b.stride, depth, count, out, width);
      }
    }
  }

  /// Whether oneDNN reads the operands in place. fp16 and codes are always packed: oneDNN multiplies them on
  /// few CPUs.
  bool in_place(const RowTile& tile, const Factor& b) const {
    if (tile.a.dtype != b.dtype || b.dtype == DType::f16 || has_8_bits(b.dtype)) return false;
    return tile.rows <= kThinRows || (b.dtype == DType::bf16 && bf16_products == Bf16Products::native);
  }
};

Gemm::Gemm(int threads, Bf16Products bf16_products)
    : implementation_(std::make_unique<Implementation>(threads, bf16_products)) {}

Gemm::~Gemm() = default;

std::size_t Gemm::scratch_bytes(Index max_rows, Index cols, Index depth) const {
  const Index block = depth_block(depth);
  const Index floats =
      round_up(max_rows * block, 16) + round_up(implementation_->packed_b_floats(cols, block), 16);
  return static_cast<std::size_t>(floats) * sizeof(float) + kLibraryBytes;
}

void Gemm::multiply(int thread, std::byte* scratch, std::span<const RowTile> tiles, const Factor& b,
                    Index cols, Index depth) {
  Implementation& impl = *implementation_;
  std::byte* const library_scratch = scratch;
  const Index block = depth_block(depth);
  auto* const packed_b = reinterpret_cast<float*>(scratch + kLibraryBytes);
  float* const packed_a = packed_b + round_up(impl.packed_b_floats(cols, block), 16);

  bool all_in_place = true;
  for (const RowTile& tile : tiles) {
    if (!impl.in_place(tile, b)) {
      all_in_place = false;
      continue;
    }
    const Shape shape{tile.rows,    cols,
                      depth,        tile.a.stride,
                      b.stride,     tile.a.transposed,
                      b.transposed, b.dtype == DType::bf16,
                      false};
    impl.run(thread, shape, tile.a.data, b.data, tile.c, library_scratch);
  }
  if (all_in_place) return;

  for (Index begin = 0; begin < depth; begin += block) {
    const Index part = std::min(block, depth - begin);
    impl.pack_b(b, cols, begin, part, packed_b);
    for (const RowTile& tile : tiles) {
      if (impl.in_place(tile, b)) continue;
      const Shape shape{tile.rows, cols, part, 0, 0, false, false, false, begin > 0};
      if (!is_packed(tile.a, depth, part)) impl.pack_a(tile.a, tile.rows, begin, part, packed_a);
      const void* const a = is_packed(tile.a, depth, part) ? tile.a.data : packed_a;
      impl.run(thread, shape, a, packed_b, tile.c, library_scratch);
    }
  }
}

}  // namespace cartan::device::cpu
