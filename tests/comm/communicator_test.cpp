// Every verb with small whole numbers, in each way in which a communicator moves data.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <thread>

#include "ways.hpp"

namespace cartan::comm {
namespace {

template <class T>
ByteView writable(T& value) {
  return std::as_writable_bytes(std::span(value));
}
template <class T>
ConstByteView readable(const T& value) {
  return std::as_bytes(std::span(value));
}

class Verbs : public EachWay {
 protected:
  /// What rank r holds at place i.
  static float mark(int r, std::size_t i) {
    return static_cast<float>(r * 10000 + static_cast<int>(i % 9973));
  }
  std::size_t size() const { return static_cast<std::size_t>(comm_.size()); }
};

TEST_P(Verbs, AllGatherBringsEveryRanksPart) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{77}, std::size_t{5000}}) {
    const auto in = operand(count), out = operand(count * size());
    for (std::size_t i = 0; i < count; ++i) in[i] = mark(comm_.rank(), i);
    run([&] { return comm_.all_gather(in.bytes(), out.bytes(), *stream_); });
    for (int r = 0; r < comm_.size(); ++r) {
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(out[static_cast<std::size_t>(r) * count + i], mark(r, i)) << count;
      }
    }
  }
}

TEST_P(Verbs, AllGatherWorksInPlace) {
  const std::size_t count = 1500;
  const auto out = operand(count * size());
  const auto in = out.subspan(static_cast<std::size_t>(comm_.rank()) * count, count);
  for (std::size_t i = 0; i < count; ++i) in[i] = mark(comm_.rank(), i);
  run([&] { return comm_.all_gather(in.bytes(), out.bytes(), *stream_); });
  for (std::size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i], mark(static_cast<int>(i / count), i % count));
  }
}

TEST_P(Verbs, PartsOfDifferentSizesAreGathered) {
  const int size = comm_.size();
  for (const std::size_t gap : {0u, 3u}) {
    const auto width = [&](int r) { return static_cast<std::size_t>(r == 1 ? 0 : 700 * r + 5); };
    std::size_t total = 0;
    for (int r = 0; r < size; ++r) total += width(r) + gap;
    const auto memory = operand(total);
    std::vector<ByteView> parts;
    std::size_t at = 0;
    for (int r = 0; r < size; ++r) {
      parts.push_back(memory.subspan(at, width(r)).bytes());
      if (r == comm_.rank())
        std::ranges::fill(memory.subspan(at, width(r)).host(), static_cast<float>(r + 1));
      at += width(r) + gap;
    }
    run([&] { return comm_.all_gather_parts(parts, *stream_); });
    at = 0;
    for (int r = 0; r < size; ++r) {
      for (std::size_t i = 0; i < width(r); ++i) ASSERT_EQ(memory[at + i], static_cast<float>(r + 1));
      for (std::size_t i = 0; i < gap; ++i) ASSERT_EQ(memory[at + width(r) + i], 0.0f);
      at += width(r) + gap;
    }
  }
}

TEST_P(Verbs, AllToAllTransposesBlocks) {
  for (const std::size_t block : {std::size_t{0}, std::size_t{1}, std::size_t{999}}) {
    const auto in = operand(block * size()), out = operand(block * size());
    for (int to = 0; to < comm_.size(); ++to) {
      for (std::size_t i = 0; i < block; ++i) {
        in[static_cast<std::size_t>(to) * block + i] = mark(comm_.rank() * 10 + to, i);
      }
    }
    run([&] { return comm_.all_to_all(in.bytes(), out.bytes(), *stream_); });
    for (int from = 0; from < comm_.size(); ++from) {
      for (std::size_t i = 0; i < block; ++i) {
        ASSERT_EQ(out[static_cast<std::size_t>(from) * block + i], mark(from * 10 + comm_.rank(), i))
            << block;
      }
    }
  }
}

TEST_P(Verbs, BroadcastBringsTheRootsData) {
  for (int root = 0; root < comm_.size(); ++root) {
    const auto data = operand(2500);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = mark(comm_.rank(), i);
    run([&] { return comm_.broadcast(data.bytes(), root, *stream_); });
    for (std::size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], mark(root, i)) << "root " << root;
  }
}

TEST_P(Verbs, SendMeetsReceiveAroundARing) {
  if (comm_.size() == 1 && is_on_gpu(GetParam())) GTEST_SKIP() << "a GPU sends nothing to itself";
  const auto data = operand(3001), from_left = operand(3001);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = mark(comm_.rank(), i);
  const int right = (comm_.rank() + 1) % comm_.size(),
            left = (comm_.rank() + comm_.size() - 1) % comm_.size();
  const auto sending = make_stream("send");
  device::Event sent;
  run([&] {
    sending->wait(stream_->record());
    sent = comm_.send(data.bytes(), right, *sending);
    const device::Event received = comm_.receive(from_left.bytes(), left, *stream_);
    stream_->wait(sent);
    return received;
  });
  for (std::size_t i = 0; i < data.size(); ++i) ASSERT_EQ(from_left[i], mark(left, i));
}

TEST_P(Verbs, ControlPlaneAgrees) {
  EXPECT_EQ(comm_.max(comm_.rank() * 3 - 5), (comm_.size() - 1) * 3 - 5);
  EXPECT_EQ(comm_.max(-(std::int64_t{1} << 40) * (comm_.rank() + 1)), -(std::int64_t{1} << 40));
  comm_.barrier();
  std::vector<int> data(700, comm_.rank());
  comm_.broadcast_host(writable(data), comm_.size() - 1);
  EXPECT_EQ(data, std::vector<int>(700, comm_.size() - 1));
  const std::vector<int> mine(2, comm_.rank());
  std::vector<int> all(2 * size());
  comm_.all_gather_host(readable(mine), writable(all));
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<int>(i / 2));
}

TEST_P(Verbs, IntegersAreSummed) {
  std::array<std::int64_t, 3> values{1, comm_.rank(), -(std::int64_t{1} << 40)};
  comm_.sum(values);
  const std::int64_t size = comm_.size();
  EXPECT_EQ(values, (std::array<std::int64_t, 3>{size, size * (size - 1) / 2, -(size << 40)}));
}

TEST_P(Verbs, IntegersAreSummedOnAStream) {
  constexpr std::size_t kCount = 71;
  const auto data = operand(2 * kCount);
  const auto value = [](int rank, std::size_t i) {
    return (std::int64_t{rank} << 33) - static_cast<std::int64_t>(i * i);
  };
  for (std::size_t i = 0; i < kCount; ++i) {
    const auto halves = std::bit_cast<std::array<float, 2>>(value(comm_.rank(), i));
    data[2 * i] = halves[0];
    data[2 * i + 1] = halves[1];
  }
  run([&] {
    const ByteView bytes = data.bytes();
    return comm_.sum_integers({reinterpret_cast<std::int64_t*>(bytes.data()), kCount}, *stream_);
  });
  for (std::size_t i = 0; i < kCount; ++i) {
    std::int64_t expected = 0;
    for (int r = 0; r < comm_.size(); ++r) expected += value(r, i);
    EXPECT_EQ((std::bit_cast<std::int64_t>(std::array<float, 2>{data[2 * i], data[2 * i + 1]})), expected)
        << i;
  }
}

TEST_P(Verbs, TheLargestOfEachOfManyIsFound) {
  const std::int64_t size = comm_.size(), far = std::int64_t{1} << 40;
  // The largest of each is another rank's.
  std::vector<std::int64_t> values(300);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<std::int64_t>(i) % size == comm_.rank() ? static_cast<std::int64_t>(i) : -far;
  comm_.max(values);
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], static_cast<std::int64_t>(i));
}

TEST_P(Verbs, HostMessagesArriveInOrder) {
  if (comm_.rank() == 0) {
    for (int r = 1; r < comm_.size(); ++r) {
      for (int value : {10, 20}) {
        const std::vector<int> message(600, value + r);
        comm_.send_host(readable(message), r);
      }
    }
  } else {
    for (int value : {10, 20}) {
      std::vector<int> message(600);
      comm_.receive_host(writable(message), 0);
      EXPECT_EQ(message, std::vector<int>(600, value + comm_.rank()));
    }
  }
}

TEST_P(Verbs, EveryCallIsRecorded) {
  const auto in = operand(16), out = operand(16 * size());
  const auto before = comm_.calls();
  run([&] { return comm_.all_gather(in.bytes(), out.bytes(), *stream_); });
  comm_.barrier();
  ASSERT_EQ(comm_.calls(), before + 2);
  const auto calls = comm_.recent_calls();
  const CallRecord& gather = calls[calls.size() - 2];
  EXPECT_EQ(gather.verb, "all_gather");
  EXPECT_EQ(gather.bytes, 64u);
  EXPECT_EQ(gather.sequence, before);
  EXPECT_TRUE(gather.done);
  EXPECT_EQ(calls.back().verb, "barrier");
  EXPECT_GT(comm_.seconds(), 0.0);
}

TEST_P(Verbs, ReductionOverlapsWithAgreementOnAnotherCommunicator) {
  const std::unique_ptr<Communicator> other = make("other");
  const CanonicalTree tree(comm_.size());
  const auto data = operand(20000);
  const auto stream = make_stream("communication");
  const auto expected = static_cast<float>(comm_.size() * (comm_.size() + 1) / 2);
  for (int turn = 0; turn < 5; ++turn) {
    std::ranges::fill(data.host(), static_cast<float>(comm_.rank() + 1));
    if (comm_.rank() == turn % comm_.size()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    run([&] {
      stream->wait(stream_->record());
      const auto reduced = comm_.all_reduce({&tree, {data.data()}, 20000}, *stream);
      EXPECT_EQ(other->max(comm_.rank() + turn), comm_.size() - 1 + turn);
      EXPECT_EQ(comm_.max(comm_.rank()), comm_.size() - 1);  // the control plane of the same one too
      stream_->wait(reduced);
      return reduced;
    });
    ASSERT_EQ(std::ranges::count(data.host(), expected), 20000);
  }
}

CARTAN_EACH_WAY(Verbs);

}  // namespace
}  // namespace cartan::comm
