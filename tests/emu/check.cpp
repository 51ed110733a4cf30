// memcheck, initcheck and racecheck for emulated kernels. The kernels are compiled with -fsanitize=thread,
// but libtsan is not linked: the callbacks the compiler inserts at each load and store are defined here.
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <sstream>
#include "block.h"
#include "runtime.h"

namespace emu {
namespace {
struct Who {  // one access inside an operation
  std::uint64_t block : 21, thread : 11, epoch : 19, warp_epoch : 12, atomic : 1;
};
constexpr unsigned kManyThreads = 2047, kManyBlocks = (1u << 21) - 1;
struct Cell {
  std::uint32_t write_op, read_op, other_read_op, pad;
  Who write, read;
};
Cell* cells = nullptr;          // one for each 2 bytes of device memory
std::uint8_t* state = nullptr;  // 0 not allocated, 1 allocated, 2 written
Cell* shared_cells = nullptr;   // dynamic, then static shared memory
thread_local unsigned char *tls_lo = nullptr, *tls_hi = nullptr;
unsigned char *image_lo = nullptr, *image_hi = nullptr;
auto& reported = *new std::set<std::pair<void*, int>>;
std::uint32_t block_token = 0;  // a new one for each block run: makes shared memory stale

void init() {
  if (tls_lo || !heap.lo) return;
  if (!cells) {
    const std::size_t n = std::size_t(heap.hi - heap.lo) / 2;
    auto map = [](std::size_t b) {
      return mmap(nullptr, b, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    };
    cells = static_cast<Cell*>(map(n * sizeof(Cell)));
    state = static_cast<std::uint8_t*>(map(n));
    shared_cells =
        static_cast<Cell*>(map((256 << 10) * sizeof(Cell) + (std::size_t(4) << 20) * sizeof(Cell)));
  }
  dl_iterate_phdr(
      [](dl_phdr_info* i, std::size_t, void*) {
        if (i->dlpi_name[0]) return 0;  // the executable itself
        for (int k = 0; k < i->dlpi_phnum; ++k) {
          const auto& h = i->dlpi_phdr[k];
          if (h.p_type == PT_TLS && i->dlpi_tls_data) {
            tls_lo = static_cast<unsigned char*>(i->dlpi_tls_data);
            tls_hi = tls_lo + h.p_memsz;
          }
          if (h.p_type == PT_LOAD) {
            auto* a = reinterpret_cast<unsigned char*>(i->dlpi_addr + h.p_vaddr);
            if (!image_lo) image_lo = a;
            image_hi = a + h.p_memsz;
          }
        }
        return 1;
      },
      nullptr);
  auto own = [](const void* v, std::size_t b) {
    for (std::size_t i = 0; i < b; ++i)
      shared_cells[(256 << 9) + std::size_t(static_cast<const unsigned char*>(v) + i - tls_lo) / 2].pad = ~0u;
  };
  own(&threadIdx, sizeof threadIdx);
  own(&blockIdx, sizeof blockIdx);
  own(&blockDim, sizeof blockDim);
  own(&gridDim, sizeof gridDim);
  own(&self, sizeof self);
}
template <class What>
void found(int kind, What&& what, const void* p, void* pc) {  // `what` makes the text: only once a place
  if (!reported.insert({pc, kind}).second) return;
  std::ostringstream o;
  o << what() << " at " << p;
  if (in_kernel())
    o << ", block " << current_block << " thread " << self->rank << " in " << op_name(running_op) << ", "
      << symbol(static_cast<char*>(pc) - 1, true);
  report(o.str());
}
bool intra_race(const Who& x, const Who& now, bool shared) {
  if (x.block != now.block) return !shared && !(x.atomic && now.atomic);
  if (x.thread == now.thread) return false;
  if (x.epoch < now.epoch) return false;
  if (x.atomic && now.atomic) return false;
  if (x.thread != kManyThreads && x.thread / 32 == now.thread / 32 && x.warp_epoch < now.warp_epoch)
    return false;
  return true;
}
// The core: one access to one cell.
inline void cell_access(Cell& c, bool write, const Who& now, std::uint32_t op, bool shared, const void* p,
                        void* pc) {
  if (c.write_op) {
    if (c.write_op == op ? intra_race(c.write, now, shared) : !shared && !happens_before(c.write_op, op))
      found(
          c.write_op == op ? 1 : 2,
          [&] {
            return c.write_op == op
                       ? std::string(write ? "race: write after write" : "race: read after write") +
                             (shared ? " in shared memory" : " in global memory")
                       : (write ? "race between streams: write after write by <"
                                : "race between streams: read after write by <") +
                             op_name(c.write_op) + "> in <" + op_name(op) + ">";
          },
          p, pc);
  }
  if (write) {
    if (c.read_op == op && !shared && c.other_read_op != op && !happens_before(c.other_read_op, op))
      found(
          4,
          [&] {
            return "race between streams: write after read by <" + op_name(c.other_read_op) + "> in <" +
                   op_name(op) + ">";
          },
          p, pc);
    if (c.read_op) {
      if (c.read_op == op
              ? intra_race(c.read, now, shared)
              : !shared && (!happens_before(c.read_op, op) || !happens_before(c.other_read_op, op)))
        found(
            c.read_op == op ? 3 : 4,
            [&] {
              return c.read_op == op
                         ? std::string("race: write after read") +
                               (shared ? " in shared memory" : " in global memory")
                         : "race between streams: write after read by <" +
                               op_name(happens_before(c.read_op, op) ? c.other_read_op : c.read_op) +
                               "> in <" + op_name(op) + ">";
            },
            p, pc);
    }
    c.write_op = op;
    c.write = now;
  } else if (c.read_op == op) {
    if (c.read.block != now.block && shared)
      c.read = now;
    else if (c.read.block != now.block)
      c.read.block = kManyBlocks;
    else if (c.read.epoch != now.epoch)
      c.read = now;
    else if (c.read.thread != now.thread)
      c.read.thread = kManyThreads;
  } else {
    if (c.read_op && !shared && !happens_before(c.read_op, op)) c.other_read_op = c.read_op;
    c.read_op = op;
    c.read = now;
  }
}
void note(const unsigned char*, unsigned, bool, void*);
void access(const void* ptr, std::size_t n, bool write, bool atomic, void* pc) {
  auto* p = static_cast<const unsigned char*>(ptr);
  if (config.profile && !atomic && !(p >= image_lo && p < image_hi))
    if (const Range s = arena_range(); p < s.lo || p >= s.hi) note(p, unsigned(n), write, pc);
  const Who now{current_block, self->rank, self->block_epoch, self->warp_epoch, atomic};
  if (p >= heap.lo && p < heap.hi) {
    const std::size_t a = std::size_t(p - heap.lo) / 2, b = (std::size_t(p - heap.lo) + n - 1) / 2;
    for (std::size_t i = a; i <= b; ++i) {
      if (state[i] == 0) {
        found(
            5,
            [&] {
              return std::string(write ? "write outside of any allocation"
                                       : "read outside of any allocation");
            },
            p, pc);
        return;
      }
      if (!write && state[i] == 1) {
        found(
            6, [&] { return std::string("read of device memory that was never written"); }, p, pc);
      }
      if (write) state[i] = 2;
      cell_access(cells[i], write, now, running_op, false, p, pc);
    }
    if (reinterpret_cast<std::uintptr_t>(p) % n && (n & (n - 1)) == 0)
      found(
          7, [&] { return std::string("misaligned access"); }, p, pc);
    return;
  }
  const Range d = dynamic_smem_range();
  std::size_t at;
  if (p >= d.lo && p < d.lo + (256 << 10)) {
    if (p + n > d.hi) {
      found(
          8, [&] { return std::string("access past the dynamic shared memory of the launch"); }, p, pc);
      return;
    }
    at = std::size_t(p - d.lo) / 2;
  } else if (const Range s = arena_range(); p >= s.lo && p < s.hi)
    return;
  else if (p >= tls_lo && p < tls_hi) {
    at = (256 << 9) + std::size_t(p - tls_lo) / 2;
    if (shared_cells[at].pad == ~0u) return;  // a variable of the emulator
  } else if (p >= image_lo && p < image_hi)
    return;  // constants
  else if (is_pinned(p))
    return;
  else {
    found(
        9, [&] { return std::string("device code touches host memory"); }, p, pc);
    return;
  }
  {
    for (std::size_t i = at; i <= at + (n - 1) / 2; ++i) {
      Cell& c = shared_cells[i];
      if (c.pad != block_token) {
        c = Cell{};
        c.pad = block_token;
      }
      if (!write && !c.write_op)
        found(
            10, [&] { return std::string("read of shared memory that was never written"); }, p, pc);
      cell_access(c, write, now, running_op, true, p, pc);
    }
  }
}
// Access patterns: the k-th access of each lane at one instruction forms one warp request; count its 32-byte
// sectors (global) or the passes its bank conflicts need (shared).
struct Request {
  const unsigned char* at[32];
  unsigned lanes = 0;
  unsigned char bytes = 0;
  bool write = false;
};
std::map<std::pair<void*, unsigned>, std::vector<Request>> warp_requests;  // (instruction, warp)
std::map<std::pair<void*, unsigned>, unsigned> lane_count;                 // (instruction, thread)
struct Pattern {
  std::uint64_t requests = 0, units = 0, ideal = 0;
  bool shared = false, write = false;
  unsigned bytes = 0;
};
std::map<void*, Pattern> patterns;
void note(const unsigned char* p, unsigned n, bool write, void* pc) {
  const unsigned k = lane_count[{pc, self->rank}]++;
  auto& v = warp_requests[{pc, self->warp}];
  if (v.size() <= k) v.resize(k + 1);
  v[k].at[self->lane] = p;
  v[k].lanes |= 1u << self->lane;
  v[k].bytes = static_cast<unsigned char>(n);
  v[k].write = write;
}
}  // namespace
void profile_block_end() {
  for (auto& [key, v] : warp_requests) {
    Pattern& q = patterns[key.first];
    for (auto& r : v) {
      std::set<std::uintptr_t> units;
      std::map<unsigned, std::set<std::uintptr_t>> bank;
      unsigned lanes = 0;
      const bool global = [&] {
        for (int l = 0; l < 32; ++l)
          if (r.lanes >> l & 1) return r.at[l] >= heap.lo && r.at[l] < heap.hi;
        return false;
      }();
      for (int l = 0; l < 32; ++l)
        if (r.lanes >> l & 1) {
          ++lanes;
          const auto a = reinterpret_cast<std::uintptr_t>(r.at[l]);
          if (global)
            for (std::uintptr_t s = a / 32; s <= (a + r.bytes - 1) / 32; ++s) units.insert(s);
          else
            for (std::uintptr_t w = a / 4; w <= (a + r.bytes - 1) / 4; ++w) bank[unsigned(w % 32)].insert(w);
        }
      std::size_t passes = 0;
      for (auto& [b, w] : bank) passes = std::max(passes, w.size());
      ++q.requests;
      q.shared = !global;
      q.write = r.write;
      q.bytes = r.bytes;
      q.units += global ? units.size() : passes;
      q.ideal +=
          global ? (lanes * r.bytes + 31) / 32 : std::max<std::size_t>(1, (lanes * r.bytes + 127) / 128);
    }
  }
  warp_requests.clear();
  lane_count.clear();
}
void print_profile() {
  for (auto& [pc, q] : patterns)
    std::printf("   %-28s %s %s %2u B: %7llu requests, %.2f %s each (ideal %.2f)\n",
                symbol(static_cast<char*>(pc) - 1, true).c_str(), q.shared ? "shared" : "global",
                q.write ? "store" : "load ", q.bytes, static_cast<unsigned long long>(q.requests),
                double(q.units) / double(q.requests), q.shared ? "passes" : "sectors",
                double(q.ideal) / double(q.requests));
  patterns.clear();
}

// Names a code address with addr2line: the kernel, or the innermost source line that is not the emulator's.
std::string symbol(const void* code, bool line) {
  static unsigned char* base = nullptr;
  if (!base)
    dl_iterate_phdr(
        [](dl_phdr_info* i, std::size_t, void*) {
          base = reinterpret_cast<unsigned char*>(i->dlpi_addr);
          return 1;
        },
        nullptr);
  char cmd[256], text[1024];
  std::vector<std::string> out;
  std::snprintf(cmd, sizeof cmd, "addr2line -C -f -i -s -e /proc/%d/exe 0x%lx", getpid(),
                static_cast<unsigned long>(static_cast<const unsigned char*>(code) - base));
  if (FILE* f = popen(cmd, "r")) {
    while (std::fgets(text, sizeof text, f)) {
      out.push_back(text);
      out.back().pop_back();
    }
    pclose(f);
  }
  if (!line) {
    std::string n = out.empty() ? "?" : out[0];
    n = n.substr(0, n.find('(', n.starts_with("(anon") || n.find("(anon") != n.npos ? n.find(')') : 0));
    const auto c = n.rfind("::");
    return c == n.npos ? n : n.substr(c + 2);
  }
  for (std::size_t i = 1; i < out.size(); i += 2)
    if (!out[i].starts_with("device.h")) return out[i].substr(0, out[i].find(' '));
  return out.size() > 1 ? out[1] : "?";
}
void forget_reported() { reported.clear(); }
void block_begin_hook(unsigned) {
  if (config.race) init();
  ++block_token;
}
void set_state(const void* p, std::size_t n, std::uint8_t v) {
  init();
  const std::size_t a = std::size_t(static_cast<const unsigned char*>(p) - heap.lo) / 2, m = (n + 1) / 2;
  std::memset(state + a, v, m);
  if (v == 2) return;
  // Whole pages become fresh ones that cost nothing until they are touched.
  constexpr std::uintptr_t kPage = 4096;
  const auto begin = reinterpret_cast<std::uintptr_t>(cells + a),
             end = reinterpret_cast<std::uintptr_t>(cells + a + m);
  const std::uintptr_t first = (begin + kPage - 1) / kPage * kPage, last = end / kPage * kPage;
  if (first >= last) {
    std::memset(static_cast<void*>(cells + a), 0, m * sizeof(Cell));
    return;
  }
  std::memset(reinterpret_cast<void*>(begin), 0, first - begin);
  std::memset(reinterpret_cast<void*>(last), 0, end - last);
  madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}
void touch(const void* p, std::size_t n, bool write) {
  if (!config.race) return;
  init();
  const std::size_t a = std::size_t(static_cast<const unsigned char*>(p) - heap.lo) / 2, m = (n + 1) / 2;
  for (std::size_t i = a; i < a + m; ++i) {
    if (state[i] == 0) {
      found(
          5, [&] { return std::string("operation " + op_name(running_op) + " outside of any allocation"); },
          p, nullptr);
      return;
    }
    if (!write && state[i] == 1) {
      found(
          6,
          [&] {
            return std::string("operation " + op_name(running_op) +
                               " reads device memory that was never written");
          },
          p, nullptr);
      break;
    }
    if (write) state[i] = 2;
    cell_access(cells[i], write, Who{}, running_op, false, heap.lo + i * 2, nullptr);
  }
}
void check_access(const void* p, std::size_t n, bool write) {
  if (config.race && self && cells) access(p, n, write, false, __builtin_return_address(0));
}
void atomic_access(const void* p, unsigned n) {
  if (config.race && self && cells) access(p, n, true, true, __builtin_return_address(0));
}
}  // namespace emu

using emu::access, emu::self, emu::config;
#define CB(n)                                                                              \
  void __tsan_read##n(void* p) {                                                           \
    if (self && config.race) emu::access(p, n, false, false, __builtin_return_address(0)); \
  }                                                                                        \
  void __tsan_write##n(void* p) {                                                          \
    if (self && config.race) emu::access(p, n, true, false, __builtin_return_address(0));  \
  }                                                                                        \
  void __tsan_unaligned_read##n(void* p) {                                                 \
    if (self && config.race) emu::access(p, n, false, false, __builtin_return_address(0)); \
  }                                                                                        \
  void __tsan_unaligned_write##n(void* p) {                                                \
    if (self && config.race) emu::access(p, n, true, false, __builtin_return_address(0));  \
  }
extern "C" {
CB(1) CB(2) CB(4) CB(8) CB(16) void __tsan_read_range(void* p, unsigned long n) {
  if (self && config.race) emu::access(p, n, false, false, __builtin_return_address(0));
}
void __tsan_write_range(void* p, unsigned long n) {
  if (self && config.race) emu::access(p, n, true, false, __builtin_return_address(0));
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
