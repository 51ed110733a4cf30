// Runs the threads of a block as fibers on one OS thread: a thread runs until it needs another one.
#include "block.h"
#include <sys/mman.h>
#include <boost/context/detail/fcontext.hpp>
#include <deque>
#include <sstream>

thread_local constinit uint3 threadIdx{}, blockIdx{};
thread_local constinit dim3 blockDim{}, gridDim{};

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace emu {
namespace ctx = boost::context::detail;
Stats stats;
void (*profile_hook)() = nullptr;
thread_local constinit Thread* self = nullptr;
thread_local unsigned current_block = 0;

namespace {
constexpr std::size_t kStack = 64 * 1024, kColour = 320,
                      kMaxThreads = 1024;  // stacks start at different cache sets

constexpr std::size_t kPool = 2 * kMaxThreads, kHead = 8 << 20,
                      kArena = kHead + (kMaxThreads + 1) * (kStack + kColour);
enum class State : unsigned char { fresh, ready, waiting, done };
struct Rendezvous {
  unsigned mask = 0, arrived = 0, readers = 0;
  Sync kind{};
  Where where{};
  bool open = false;
  alignas(16) unsigned char data[32][64];
};
struct CopyAsync {
  void* dst;
  const void* src;
};
struct Fiber : Thread {
  State state = State::fresh;
  ctx::fcontext_t context = nullptr;
  int stack = -1;
  Where where{};
  Sync kind{};
  Rendezvous* at = nullptr;
  std::vector<CopyAsync> copying;
  std::vector<std::vector<CopyAsync>> groups;
};
struct Block {
  const Body* body = nullptr;
  Fiber* fiber = nullptr;
  unsigned threads = 0;
  std::vector<unsigned> queue;
  std::size_t head = 0;         // runnable threads, in order
  std::vector<unsigned> order;  // the policy's order of all threads
  std::vector<int> stacks;      // free ones
  unsigned live = 0, arrived = 0;
  Sync block_kind{};
  Where block_where{};
  int acc = 0, result = 0;
  unsigned epoch = 0;
  std::vector<std::vector<Rendezvous*>> warp;
  std::vector<Rendezvous*> spare;
  Rendezvous* pool = nullptr;
  unsigned pool_used = 0;
  ctx::fcontext_t main = nullptr;
  const void* main_stack = nullptr;
  std::size_t main_size = 0;
  bool in_fiber = false;
  std::string report;
  unsigned char* arena = nullptr;
  unsigned char* args = nullptr;
  unsigned char* stack_base = nullptr;
  unsigned char* smem = nullptr;
  std::size_t smem_bytes = 0;
  unsigned rng = 1;
};
thread_local Block* blk = nullptr;
Fiber* me() { return static_cast<Fiber*>(self); }

unsigned next_random(unsigned& s) {
  s ^= s << 13;
  s ^= s >> 17;
  s ^= s << 5;
  return s;
}
void make_runnable(unsigned t) {
  blk->fiber[t].state = State::ready;
  blk->queue.push_back(t);
}

const char* name(Sync k) {
  constexpr const char* n[] = {"__syncthreads",
                               "__syncthreads_or",
                               "__syncthreads_and",
                               "__syncthreads_count",
                               "__syncwarp",
                               "shuffle",
                               "ballot",
                               "any",
                               "all",
                               "reduce",
                               "match",
                               "mma",
                               "ldmatrix"};
  return n[int(k)];
}

void entry(ctx::transfer_t);

// Switch away; the current fiber's context is kept in `save` (null: it is finished).
void switch_to_next(Fiber* save) {
  Block& b = *blk;
  ctx::fcontext_t target;
  ++stats.switches;
  if (b.head == b.queue.size() || !b.report.empty()) {
    target = b.main;
    self = nullptr;
  } else {
    Fiber& f = b.fiber[b.queue[b.head++]];
    if (b.head == b.queue.size()) {
      b.queue.clear();
      b.head = 0;
    }
    if (f.state == State::fresh) {
      f.stack = b.stacks.back();
      b.stacks.pop_back();
      f.context = ctx::make_fcontext(b.stack_base + (f.stack + 1) * (kStack + kColour), kStack, entry);
    }
    f.state = State::ready;
    self = &f;
    threadIdx = f.thread_idx;
    if (&f == save) return;
    target = f.context;
  }
#ifdef __SANITIZE_ADDRESS__
  void* fake = nullptr;
  if (self)
    __sanitizer_start_switch_fiber(save || target == b.main || !b.in_fiber ? &fake : nullptr,
                                   b.stack_base + me()->stack * (kStack + kColour) + kColour, kStack);
  else
    __sanitizer_start_switch_fiber(save ? &fake : nullptr, b.main_stack, b.main_size);
  b.in_fiber = self;
#endif
  ctx::transfer_t t = ctx::jump_fcontext(target, save);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  if (t.data)
    static_cast<Fiber*>(t.data)->context = t.fctx;  // who left for us
  else if (!blk->main)
    blk->main = t.fctx;
}

void release_block() {
  Block& b = *blk;
  ++stats.barriers;
  ++b.epoch;
  b.result = b.acc;
  b.arrived = 0;
  b.acc = b.block_kind == Sync::block_and;
  for (unsigned t : b.order)
    if (b.fiber[t].state == State::waiting && !b.fiber[t].at) make_runnable(t);
}
void release(unsigned warp, Rendezvous* r) {
  ++stats.exchanges;
  auto& v = blk->warp[warp];
  v.erase(std::find(v.begin(), v.end(), r));
  r->open = false;
  r->readers = std::popcount(r->arrived);
  unsigned top = 0;
  for (unsigned l = 0; l < 32; ++l)
    if (r->arrived >> l & 1) {
      auto& f = blk->fiber[warp * 32 + l];
      top = std::max(top, f.warp_epoch);
    }
  for (unsigned i = 0; i < 32; ++i) {
    const unsigned l = policy.order == Order::reverse ? 31 - i : i;
    if (!(r->arrived >> l & 1)) continue;
    auto& f = blk->fiber[warp * 32 + l];
    if (r->kind == Sync::syncwarp) f.warp_epoch = top + 1;
    if (f.state == State::waiting) make_runnable(warp * 32 + l);
  }
}
unsigned live_mask(unsigned warp) {
  unsigned m = 0;
  for (unsigned l = 0; l < 32 && warp * 32 + l < blk->threads; ++l)
    m |= unsigned(blk->fiber[warp * 32 + l].state != State::done) << l;
  return m;
}

void finish() {
  Block& b = *blk;
  Fiber* f = me();
  if (!f->copying.empty() || !f->groups.empty()) {
    b.report = "thread ended with cp.async copies that were not waited for";
  }
  f->state = State::done;
  --b.live;
  if (b.live && b.arrived == b.live) release_block();
  for (auto* r : std::vector<Rendezvous*>(b.warp[f->warp]))
    if (r->arrived == (r->mask & live_mask(f->warp))) release(f->warp, r);
}

void entry(ctx::transfer_t t) {
#ifdef __SANITIZE_ADDRESS__
  const void* from;
  std::size_t size;
  __sanitizer_finish_switch_fiber(nullptr, &from, &size);
  if (!t.data && !blk->main) {
    blk->main_stack = from;
    blk->main_size = size;
  }
#endif
  if (t.data)
    static_cast<Fiber*>(t.data)->context = t.fctx;
  else if (!blk->main)
    blk->main = t.fctx;
  for (;;) {
    blk->body->invoke(blk->body->fn, blk->args);
    finish();
    Block& b = *blk;
    const int stack = me()->stack;
    if (b.report.empty() && b.head < b.queue.size() &&
        b.fiber[b.queue[b.head]].state == State::fresh) {  // go on, on the same stack
      Fiber& f = b.fiber[b.queue[b.head++]];
      if (b.head == b.queue.size()) {
        b.queue.clear();
        b.head = 0;
      }
      f.stack = stack;
      f.state = State::ready;
      self = &f;
      threadIdx = f.thread_idx;
      continue;
    }
    b.stacks.push_back(stack);
    switch_to_next(nullptr);
  }
}

void describe_stuck(Block& b) {
  std::ostringstream o;
  o << "deadlock: no thread of the block can go on";
  for (std::size_t i = 0; i < b.threads;) {
    std::size_t j = i;
    auto key = [&](std::size_t k) {
      auto& f = b.fiber[k];
      return std::tuple(f.state == State::done, f.where.line, f.kind, f.at ? f.at->mask : 0u);
    };
    while (j < b.threads && key(j) == key(i)) ++j;
    auto& f = b.fiber[i];
    o << "\n  threads " << i << ".." << j - 1 << ": ";
    if (f.state == State::done)
      o << "ended";
    else {
      o << "wait in " << name(f.kind) << " at " << f.where.file << ":" << f.where.line;
      if (f.at) o << " mask 0x" << std::hex << f.at->mask << std::dec;
    }
    i = j;
  }
  b.report = o.str();
}
}  // namespace

void fail(Where w, const char* what) {
  std::ostringstream o;
  o << what << " (block " << blockIdx.x << "," << blockIdx.y << "," << blockIdx.z << " thread " << self->rank
    << ") at " << w.file << ":" << w.line;
  blk->report = o.str();
  for (;;) switch_to_next(me());
}

int block_barrier(Sync kind, int p, Where w) {
  Block& b = *blk;
  Fiber* f = me();
  if (b.arrived == 0) {
    b.block_kind = kind;
    b.block_where = w;
    b.acc = kind == Sync::block_and;
  } else if (b.block_kind != kind || b.block_where.line != w.line || b.block_where.file != w.file)
    fail(w, "divergent barrier: other threads of the block wait at another __syncthreads");
  if (kind == Sync::block_or)
    b.acc |= p != 0;
  else if (kind == Sync::block_and)
    b.acc &= p != 0;
  else if (kind == Sync::block_count)
    b.acc += p != 0;
  f->where = w;
  f->kind = kind;
  f->at = nullptr;
  ++b.arrived;
  f->state = State::waiting;
  if (b.arrived == b.live) release_block();
  switch_to_next(f);
  ++f->block_epoch;
  f->warp_epoch = 0;
  return b.result;
}

Exchange exchange(unsigned mask, Sync kind, const void* src, unsigned bytes, Where w) {
  Block& b = *blk;
  Fiber* f = me();
  if (!(mask >> f->lane & 1)) fail(w, "the calling lane is not in its own mask");
  auto& open = b.warp[f->warp];
  Rendezvous* r = nullptr;
  for (auto* x : open)
    if (x->mask == mask && !(x->arrived >> f->lane & 1)) {
      r = x;
      break;
    }
  if (!r) {
    if (b.spare.empty())
      r = new (b.pool + b.pool_used++) Rendezvous;
    else {
      r = b.spare.back();
      b.spare.pop_back();
    }
    r->mask = mask;
    r->arrived = 0;
    r->kind = kind;
    r->where = w;
    r->open = true;
    open.push_back(r);
  } else if (r->kind != kind)
    fail(w, "lanes of one mask meet in different warp operations");
  if (bytes) std::memcpy(r->data[f->lane], src, bytes);
  r->arrived |= 1u << f->lane;
  f->where = w;
  f->kind = kind;
  f->at = r;
  if (r->arrived == (mask & live_mask(f->warp)))
    release(f->warp, r);
  else {
    f->state = State::waiting;
    switch_to_next(f);
  }
  f->at = nullptr;
  return {r->data, r->arrived, r};
}
void exchange_done(const Exchange& e) {
  auto* r = static_cast<Rendezvous*>(e.handle);
  if (--r->readers == 0) blk->spare.push_back(r);
}

void* dynamic_smem() { return blk->smem; }
Range dynamic_smem_range() { return blk ? Range{blk->smem, blk->smem + blk->smem_bytes} : Range{}; }
Range arena_range() { return {blk->arena, blk->arena + kArena}; }
bool in_kernel() { return self != nullptr; }

void cp_async16(void* d, const void* s, const char* file, int line) {
  const Where w{file, line};
  if ((reinterpret_cast<std::uintptr_t>(d) | reinterpret_cast<std::uintptr_t>(s)) % 16)
    fail(w, "cp.async of 16 bytes: misaligned address");
  std::memset(d, 0xff, 16);  // NaN until the copy has been waited for
  me()->copying.push_back({d, s});
}
void cp_async_commit() {
  me()->groups.push_back(std::move(me()->copying));
  me()->copying.clear();
}
void cp_async_wait(int left) {
  auto& g = me()->groups;
  while (int(g.size()) > left) {
    for (auto& c : g.front()) {
      check_access(c.src, 16, false);
      check_access(c.dst, 16, true);
      std::memcpy(c.dst, c.src, 16);
    }
    g.erase(g.begin());
  }
}

std::string run_grid(dim3 grid, dim3 block, std::size_t smem, const Body& body) {
  const unsigned n = block.x * block.y * block.z;
  if (n == 0 || n > kMaxThreads) return "invalid block size";
  static thread_local Block storage;
  Block& b = storage;
  if (!b.arena) {  // everything the emulator itself touches while a kernel runs: not checked
    static_assert(sizeof(Body::args) + kMaxThreads * sizeof(Fiber) + kPool * sizeof(Rendezvous) < kHead);
    b.arena = static_cast<unsigned char*>(
        mmap(nullptr, kArena, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    b.args = b.arena;
    b.fiber = new (b.arena + sizeof(Body::args)) Fiber[kMaxThreads];
    b.pool = reinterpret_cast<Rendezvous*>(b.fiber + kMaxThreads);
    b.stack_base = b.arena + kHead;
    b.smem = static_cast<unsigned char*>(
        mmap(nullptr, 256 * 1024, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  b.smem_bytes = smem;
  b.body = &body;
  std::memcpy(b.args, body.args, body.bytes);
  b.report.clear();
  b.rng = policy.seed * 2654435761u + 1;
  blk = &b;
  b.threads = n;
  b.order.resize(n);
  b.warp.assign((n + 31) / 32, {});
  const std::uint64_t blocks = std::uint64_t(grid.x) * grid.y * grid.z;
  for (std::uint64_t i = 0; i < blocks && b.report.empty(); ++i) {
    const std::uint64_t k = policy.order == Order::reverse ? blocks - 1 - i : i;
    const uint3 bi{unsigned(k % grid.x), unsigned(k / grid.x % grid.y), unsigned(k / grid.x / grid.y)};
    current_block = unsigned(k);
    blockIdx = bi;
    blockDim = block;
    gridDim = grid;
    std::memset(b.smem, 0xff, smem);  // uninitialised shared memory reads as NaN
    b.stacks.clear();
    b.queue.clear();
    b.head = 0;
    b.live = n;
    b.arrived = 0;
    b.main = nullptr;
    for (unsigned t = n; t--;) b.stacks.push_back(int(t));
    for (unsigned t = 0; t < n; ++t) {
      Fiber& f = b.fiber[t];
      f.thread_idx = {t % block.x, t / block.x % block.y, t / block.x / block.y};
      f.rank = t;
      f.lane = t % 32;
      f.warp = t / 32;
      f.block_epoch = f.warp_epoch = 0;
      f.state = State::fresh;
      f.at = nullptr;
      f.copying.clear();
      f.groups.clear();
      b.order[t] = policy.order == Order::reverse ? n - 1 - t : t;
    }
    if (policy.order == Order::shuffled)
      for (unsigned t = n; t > 1; --t) std::swap(b.order[t - 1], b.order[next_random(b.rng) % t]);
    b.queue = b.order;
    stats.threads += n;
    block_begin_hook(unsigned(k));
    switch_to_next(nullptr);  // returns when nothing is runnable
    self = nullptr;
    if (profile_hook) profile_hook();
    if (b.report.empty() && b.live) describe_stuck(b);
    for (auto& v : b.warp) v.clear();
    b.spare.clear();
    b.pool_used = 0;
  }
#ifdef __SANITIZE_ADDRESS__
  if (!b.report.empty())
    __asan_unpoison_memory_region(b.stack_base, kArena - kHead);  // stacks given up in the middle
#endif
  std::string r = b.report;
  blk = nullptr;
  return r;
}
}  // namespace emu
