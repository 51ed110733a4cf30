// Each exchange of context parallelism against one call on whole sequences: results, gradients, bits,
// messages, scratch memory, and the work of each rank.
#include "cartan/model/context_group.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "comm/mpi/mpi_communicator.hpp"
#include "device/ops_fixture.hpp"
#include "model/context_exchange.hpp"
#include "support/mpi_session.hpp"

namespace cartan::model {
namespace {

using comm::Communicator;
using device::Arena;
using device::Device;
using device::DeviceKind;
using device::Matrix;
using device::testing::Data;
using device::testing::random_values;
using device::testing::Values;
using ::testing::HasSubstr;

constexpr ContextExchange kExchanges[] = {ContextExchange::ring, ContextExchange::all_gather,
                                          ContextExchange::all_to_all};

const char* name_of(ContextExchange exchange) {
  constexpr const char* names[] = {"ring", "all-gather", "all-to-all"};
  return names[static_cast<std::size_t>(exchange)];
}

struct Heads {
  Index heads, kv_heads, head_dim;
};

struct Result {
  Values out, log_sum_exp, dq, dk, dv;
  friend bool operator==(const Result&, const Result&) = default;
};

/// Whole sequences.
struct Problem {
  DType dtype;
  Index sequences, chunk_rows, ranks;
  Heads h;
  std::vector<std::int32_t> starts;
  Values qkv, dout;

  Problem(DType type, Index sequences_, Index chunk_rows_, Index ranks_, Heads heads, bool documents)
      : dtype(type),
        sequences(sequences_),
        chunk_rows(chunk_rows_),
        ranks(ranks_),
        h(heads),
        qkv(random_values(tokens() * qkv_cols(), "qkv")),
        dout(random_values(tokens() * q_cols(), "dout")) {
    for (Index s = 0; s < sequences; ++s) {
      std::int32_t start = 0;
      for (Index p = 0; p < length(); ++p) {
        if (documents && (p * 7 + 3 * s) % 31 == 5) start = static_cast<std::int32_t>(p);
        starts.push_back(start);
      }
    }
  }

  Index length() const { return 2 * ranks * chunk_rows; }
  Index tokens() const { return sequences * length(); }
  Index q_cols() const { return h.heads * h.head_dim; }
  Index kv_cols() const { return h.kv_heads * h.head_dim; }
  Index qkv_cols() const { return q_cols() + 2 * kv_cols(); }
  Matrix q(Data& all) const { return all.matrix(qkv_cols()).col_block(0, q_cols()); }
  Matrix k(Data& all) const { return all.matrix(qkv_cols()).col_block(q_cols(), kv_cols()); }
  Matrix v(Data& all) const { return all.matrix(qkv_cols()).col_block(q_cols() + kv_cols(), kv_cols()); }

  /// Chunks r and 2 ranks - 1 - r of each sequence, of `count` elements a row.
  template <class T>
  std::vector<T> rows(const std::vector<T>& all, Index count, int rank) const {
    std::vector<T> result;
    for (Index s = 0; s < sequences; ++s) {
      for (const Index chunk : {Index{rank}, 2 * ranks - 1 - rank}) {
        const auto begin = all.begin() + (s * length() + chunk * chunk_rows) * count;
        result.insert(result.end(), begin, begin + chunk_rows * count);
      }
    }
    return result;
  }
  Values columns(const Values& all, Index first, Index count) const {
    Values result;
    for (auto row = all.begin(); row != all.end(); row += qkv_cols())
      result.insert(result.end(), row + first, row + first + count);
    return result;
  }
  Result result(const Data& out, const Data& log_sum_exp, const Data& dqkv) const {
    const Values d = dqkv.values();
    return {out.values(), log_sum_exp.values(), columns(d, 0, q_cols()), columns(d, q_cols(), kv_cols()),
            columns(d, q_cols() + kv_cols(), kv_cols())};
  }
};

Data nothing(DType dtype, Index size) { return {dtype, Values(static_cast<std::size_t>(size), NAN)}; }

/// One call on whole sequences; `rank`'s rows of it.
Result expected(const Problem& p, int rank) {
  const auto device = device::testing::cpu(1);
  Data qkv(p.dtype, p.qkv), dout(p.dtype, p.dout), out = nothing(p.dtype, p.tokens() * p.q_cols());
  Data lse = nothing(DType::f32, p.tokens() * p.h.heads), dqkv = nothing(p.dtype, p.tokens() * p.qkv_cols());
  device::AttentionShape shape;
  shape.sequences = p.sequences;
  shape.q_length = shape.k_length = p.length();
  shape.heads = p.h.heads;
  shape.kv_heads = p.h.kv_heads;
  shape.head_dim = p.h.head_dim;
  shape.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.h.head_dim)));
  device::Ops& ops = device->ops();
  device::Stream& stream = device->compute_stream();
  ops.attention_forward(shape, p.q(qkv), p.k(qkv), p.v(qkv), p.starts, out.matrix(p.q_cols()), lse.vector(),
                        stream);
  ops.attention_backward(shape, p.q(qkv), p.k(qkv), p.v(qkv), out.matrix(p.q_cols()), lse.vector(), p.starts,
                         dout.matrix(p.q_cols()), p.q(dqkv), false, p.k(dqkv), p.v(dqkv), false, stream);
  stream.synchronize();
  const Result all = p.result(out, lse, dqkv);
  return {p.rows(all.out, p.q_cols(), rank), p.rows(all.log_sum_exp, p.h.heads, rank),
          p.rows(all.dq, p.q_cols(), rank), p.rows(all.dk, p.kv_cols(), rank),
          p.rows(all.dv, p.kv_cols(), rank)};
}

/// How a group works.
struct Way {
  ContextExchange exchange;
  bool overlap = false;
  int threads = 1;
};

/// Overlap is the ring's; the others do without.
constexpr Way kWays[] = {{ContextExchange::ring, false},
                         {ContextExchange::ring, true},
                         {ContextExchange::all_gather},
                         {ContextExchange::all_to_all}};

/// What this rank gets. On `sim` the numbers mean nothing.
Result attend(const Problem& p, Communicator& comm, Way way, Device& device, Arena& arena) {
  const int rank = comm.rank();
  Data qkv(p.dtype, p.rows(p.qkv, p.qkv_cols(), rank)), dout(p.dtype, p.rows(p.dout, p.q_cols(), rank));
  const Index own = p.tokens() / p.ranks;
  Data out = nothing(p.dtype, own * p.q_cols()), lse = nothing(DType::f32, own * p.h.heads);
  Data dqkv = nothing(p.dtype, own * p.qkv_cols());
  const std::vector<std::int32_t> starts = p.rows(p.starts, 1, rank);
  const AttentionOperands of{{p.sequences, own / p.sequences},
                             p.h.heads,
                             p.h.kv_heads,
                             p.h.head_dim,
                             p.q(qkv),
                             p.k(qkv),
                             p.v(qkv),
                             starts,
                             p.starts};
  const ContextGroup group(comm, way.exchange, device, way.overlap);
  const Workplace work{device, arena, p.dtype};
  group.forward(of, out.matrix(p.q_cols()), {}, work);
  const Values without_statistics = out.values();
  out = nothing(p.dtype, own * p.q_cols());
  group.forward(of, out.matrix(p.q_cols()), lse.vector(), work);
  device.compute_stream().synchronize();
  if (device.kind() != DeviceKind::sim) {
    EXPECT_EQ(out.values(), without_statistics);
  }
  group.backward(of, out.matrix(p.q_cols()), lse.vector(), dout.matrix(p.q_cols()), p.q(dqkv), p.k(dqkv),
                 p.v(dqkv), work);
  device.compute_stream().synchronize();
  return p.result(out, lse, dqkv);
}

/// The arena bytes that a rank of such a group needs, found without its peers.
std::size_t planned_bytes(const Problem& p, int rank, Way way) {
  const auto device = device::make_sim_device(DeviceKind::cpu, {.threads = way.threads});
  comm::Mesh mesh = comm::Mesh::imagined({.pp = 1, .dp = 1, .cp = static_cast<int>(p.ranks), .tp = 1}, rank);
  Arena arena;
  attend(p, mesh.axis(comm::Axis::cp), way, *device, arena);
  return arena.peak();
}

/// With exactly the memory that was planned, in which everything is not a number at first.
Result attend(const Problem& p, Communicator& comm, Way way) {
  const auto device = device::testing::cpu(way.threads);
  const std::size_t bytes = planned_bytes(p, comm.rank(), way);
  device::Buffer memory = device->allocate(bytes, device::MemoryKind::activations, "arena");
  if (bytes > 0) std::memset(memory.data(), 0xff, bytes);
  Arena arena(std::move(memory));
  Result result = attend(p, comm, way, *device, arena);
  EXPECT_EQ(arena.peak(), bytes);
  return result;
}

void expect_near(const Values& found, const Values& expected, double tolerance, const char* what) {
  SCOPED_TRACE(what);
  device::testing::expect_close(found, expected, tolerance, tolerance);
}

/// The same bits, or as near as fp32 sums in another order and a rounding of out to bf16 allow.
void compare(const Problem& p, Way way, const Result& found, const Result& expected) {
  const bool is_fp32 = p.dtype == DType::f32, alone = p.ranks == 1;
  const bool same_rows = alone || way.exchange != ContextExchange::ring;
  const bool same_keys =
      alone || (way.exchange == ContextExchange::all_to_all && p.h.kv_heads % p.ranks == 0);
  if (same_rows) {
    EXPECT_EQ(found.out, expected.out);
    EXPECT_EQ(found.dq, expected.dq);
  } else {
    expect_near(found.out, expected.out, is_fp32 ? 2e-6 : 0x1p-8, "out");
    expect_near(found.dq, expected.dq, is_fp32 ? 1e-5 : 2e-2, "dq");
  }
  if (alone || way.exchange == ContextExchange::all_gather) {
    EXPECT_EQ(found.log_sum_exp, expected.log_sum_exp);
  } else if (way.exchange == ContextExchange::ring) {
    expect_near(found.log_sum_exp, expected.log_sum_exp, 2e-6, "log_sum_exp");
  }
  if (same_keys) {
    EXPECT_EQ(found.dk, expected.dk);
    EXPECT_EQ(found.dv, expected.dv);
  } else {
    expect_near(found.dk, expected.dk, is_fp32 ? 1e-5 : 2e-2, "dk");
    expect_near(found.dv, expected.dv, is_fp32 ? 1e-5 : 2e-2, "dv");
  }
}

std::string description(const Problem& p, Way way) {
  return fmt::format("{}{}, {} of {} sequences of {} tokens, heads {}/{} x {}", name_of(way.exchange),
                     way.overlap ? " with overlap" : "", cartan::name_of(p.dtype), p.sequences, p.length(),
                     p.h.heads, p.h.kv_heads, p.h.head_dim);
}

class OverRanks : public ::testing::Test {
 protected:
  int ranks() const { return testing::session().world_size(); }
  Communicator& comm() { return mesh_.axis(comm::Axis::cp); }

  /// Heads that every exchange can serve, shared key/value heads too.
  std::vector<Heads> kinds_of_heads() const {
    std::vector<Heads> kinds = {{2 * ranks(), ranks(), 8}, {ranks(), ranks(), 5}, {2 * ranks(), 1, 24}};
    if (ranks() % 2 == 0) kinds.push_back({2 * ranks(), ranks() / 2, 12});
    return kinds;
  }
  void compare_all(const Problem& p, Communicator& comm) {
    const Result whole = expected(p, comm.rank());
    for (const Way way : kWays) {
      SCOPED_TRACE(description(p, way));
      compare(p, way, attend(p, comm, way), whole);
    }
  }

 private:
  comm::Mesh mesh_{testing::session(), {.pp = 1, .dp = 1, .cp = ranks(), .tp = 1}};
};

TEST_F(OverRanks, EveryExchangeGivesTheWholeInFp32) {
  for (const Heads heads : kinds_of_heads()) {
    compare_all({DType::f32, 1, 1, ranks(), heads, false}, comm());
    compare_all({DType::f32, 3, 19, ranks(), heads, true}, comm());
    compare_all({DType::f32, 2, 37, ranks(), heads, false}, comm());
  }
}

TEST_F(OverRanks, EveryExchangeGivesTheWholeInBfloat16) {
  for (const Heads heads : kinds_of_heads()) {
    compare_all({DType::bf16, 1, 37, ranks(), heads, true}, comm());
    compare_all({DType::bf16, 2, 23, ranks(), heads, false}, comm());
  }
}

TEST_F(OverRanks, HeadsNeedNotDivideButForAllToAll) {
  const Problem p(DType::f32, 2, 21, ranks(), {5, 1, 7}, true);
  const Result whole = expected(p, comm().rank());
  for (const Way way : {Way{ContextExchange::ring, true}, Way{ContextExchange::all_gather}}) {
    SCOPED_TRACE(description(p, way));
    compare(p, way, attend(p, comm(), way), whole);
  }
  if (ranks() == 1 || ranks() == 5) return;
  const auto device = device::make_sim_device(DeviceKind::cpu, {.threads = 1});
  Arena arena;
  EXPECT_THROW(attend(p, comm(), {ContextExchange::all_to_all}, *device, arena), InternalError);
}

TEST_F(OverRanks, MessagesBetweenNodesAreNotConfused) {
  // Without shared memory, and cut where they are long: sends wait for their receives.
  comm::MpiOptions options;
  options.spin = false;
  options.force_messages = true;
  for (const std::size_t most : {std::size_t{1000}, std::size_t{1} << 30}) {
    options.max_message_bytes = most;
    comm::MpiCommunicator messages(comm::duplicate(MPI_COMM_WORLD, "messages"), "messages", options);
    compare_all({DType::f32, 2, 40, ranks(), {2 * ranks(), ranks(), 16}, true}, messages);
  }
}

TEST_F(OverRanks, BitsAreTheSameInEveryRunWithAnyThreadsAndOverlap) {
  for (const ContextExchange exchange : kExchanges) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Problem p(dtype, 2, 33, ranks(), {2 * ranks(), 1, 16}, true);
      SCOPED_TRACE(description(p, {exchange}));
      const Result first = attend(p, comm(), {exchange, false, 1});
      EXPECT_EQ(attend(p, comm(), {exchange, false, 1}), first);
      EXPECT_EQ(attend(p, comm(), {exchange, true, 2}), first);
    }
  }
}

TEST_F(OverRanks, CallsAreAsFewAsTheExchangeNeeds) {
  const Problem p(DType::f32, 3, 8, ranks(), {2 * ranks(), ranks(), 8}, false);
  const auto calls = [&](ContextExchange exchange) {
    const std::uint64_t before = comm().calls();
    attend(p, comm(), {exchange});
    return static_cast<int>(comm().calls() - before);
  };
  // Two forward passes and a backward pass of three sequences; nothing where a rank is alone.
  const int some = ranks() > 1 ? 1 : 0, n = ranks();
  EXPECT_EQ(calls(ContextExchange::ring), some * (2 * 2 * (n - 1) + 2 * (n - 1) + 2 * n));
  EXPECT_EQ(calls(ContextExchange::all_gather), some * 3 * (2 * 2 + 2 + 2));
  EXPECT_EQ(calls(ContextExchange::all_to_all), some * 3 * (2 * 2 + 3));
}

TEST_F(OverRanks, WorkIsEvenAndNoneIsDoneTwice) {
  const Problem p(DType::f32, 2, 12, ranks(), {2 * ranks(), ranks(), 8}, false);
  const Problem whole(DType::f32, 2, 12 * ranks(), 1, p.h, false);
  const auto flops = [](const Problem& problem, int rank, ContextExchange exchange) {
    const auto device = device::make_sim_device(DeviceKind::cpu, {.threads = 1});
    comm::Mesh mesh =
        comm::Mesh::imagined({.pp = 1, .dp = 1, .cp = static_cast<int>(problem.ranks), .tp = 1}, rank);
    Arena arena;
    attend(problem, mesh.axis(comm::Axis::cp), {exchange}, *device, arena);
    return device->counts().attention_flops;
  };
  for (const ContextExchange exchange : kExchanges) {
    const double all = flops(whole, 0, exchange);
    EXPECT_GT(all, 0);
    for (int rank = 0; rank < ranks(); ++rank)
      EXPECT_EQ(flops(p, rank, exchange) * ranks(), all) << name_of(exchange) << ", rank " << rank;
  }
}

TEST_F(OverRanks, OddRowsAreRefused) {
  if (ranks() == 1) return;
  Problem p(DType::f32, 1, 4, ranks(), {ranks(), ranks(), 8}, false);
  const auto device = device::make_sim_device(DeviceKind::cpu, {.threads = 1});
  Arena arena;
  const ContextGroup group(comm(), ContextExchange::ring, *device, false);
  AttentionOperands of;
  of.shape = {1, 7};
  EXPECT_THROW(group.forward(of, {}, {}, {*device, arena, DType::f32}), InternalError);
}

ModelConfig model_of(Index heads, Index kv_heads) {
  ModelConfig config;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.vocab = 256;
  config.derive(256);
  return config;
}

TEST(WhyNot, AcceptsWhatEachExchangeCanServe) {
  for (const ContextExchange exchange : kExchanges) {
    EXPECT_EQ(why_not(model_of(8, 2), 1024, 4, 1, exchange), "");
    EXPECT_EQ(why_not(model_of(8, 2), 1024, 4, 2, exchange), "");
    EXPECT_EQ(why_not(model_of(8, 8), 1024, 8, 1, exchange), "");
    EXPECT_EQ(why_not(model_of(5, 1), 17, 1, 1, exchange), "");
  }
  EXPECT_EQ(why_not(model_of(5, 1), 96, 4, 1, ContextExchange::ring), "");
}

TEST(WhyNot, NamesSequencesThatCanBeCut) {
  EXPECT_EQ(why_not(model_of(8, 2), 1000, 3, 1, ContextExchange::ring),
            "data.seq = 1000 cannot be cut into 6 equal chunks, two for each of mesh.cp = 3 ranks: use "
            "996 or 1002, or --cp 1 or 2");
  EXPECT_EQ(why_not(model_of(8, 2), 12, 2, 4, ContextExchange::all_gather),
            "data.seq = 12 cannot be cut into equal rows for mesh.cp * mesh.tp = 2 * 4 ranks: use 8 or "
            "16, or --cp 1");
  EXPECT_EQ(why_not(model_of(8, 2), 7, 1, 2, ContextExchange::ring),
            "data.seq = 7 cannot be cut into equal rows for mesh.cp * mesh.tp = 1 * 2 ranks: use "
            "6 or 8");
  EXPECT_THAT(why_not(model_of(8, 2), 3, 4, 1, ContextExchange::ring), HasSubstr("use 8, or"));
}

TEST(WhyNot, NamesHeadsThatCannotBeDistributed) {
  EXPECT_EQ(
      why_not(model_of(6, 6), 1024, 4, 1, ContextExchange::all_to_all),
      "context.exchange = all-to-all distributes heads, but 6 query heads are not divisible by mesh.cp = 4: "
      "use --cp 1 or 2, or --context.exchange ring or all-gather");
  EXPECT_EQ(why_not(model_of(12, 4), 1152, 6, 1, ContextExchange::all_to_all),
            "context.exchange = all-to-all distributes heads, but 4 key/value heads neither are divisible by "
            "mesh.cp "
            "= 6 nor divide it: use --cp 1, 2, 4 or 12, or --context.exchange ring or all-gather");
  EXPECT_THAT(
      why_not(model_of(8, 8), 1024, 4, 4, ContextExchange::all_to_all),
      HasSubstr("2 query heads a rank of mesh.tp = 4 are not divisible by mesh.cp = 4: use --cp 1 or 2"));
}

TEST(WhyNot, LooksAtEveryPlaceOfTensorParallelism) {
  // Six heads over four places: 1, 2, 1 and 2.
  EXPECT_THAT(why_not(model_of(6, 6), 1024, 2, 4, ContextExchange::all_to_all),
              HasSubstr("1 query heads a rank of mesh.tp = 4 are not divisible by mesh.cp = 2: use --cp 1,"));
  EXPECT_THAT(why_not(model_of(5, 5), 1024, 2, 2, ContextExchange::all_to_all), HasSubstr("3 query heads"));
}

TEST(ContextExchangeName, IsOneOfThree) {
  EXPECT_EQ(context_exchange_from_name("ring"), ContextExchange::ring);
  EXPECT_EQ(context_exchange_from_name("all-gather"), ContextExchange::all_gather);
  EXPECT_EQ(context_exchange_from_name("all-to-all"), ContextExchange::all_to_all);
  EXPECT_THROW(context_exchange_from_name("ulysses"), ConfigError);
}

}  // namespace
}  // namespace cartan::model
