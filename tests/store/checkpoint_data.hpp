// Tensors with known bytes for the tests of checkpoints, and ways to deal them out to ranks.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "cartan/core/json.hpp"
#include "cartan/store/checkpoint.hpp"

namespace cartan::testing {

/// A folder of its own, removed at the end.
class ScratchFolder {
 public:
  ScratchFolder() {
    // In memory where that is possible: a test of many saves would wait for the disk most of the time.
    const std::filesystem::path shared = "/dev/shm", where = ::access(shared.c_str(), W_OK) == 0
                                                                 ? shared
                                                                 : std::filesystem::temp_directory_path();
    std::string name = (where / "cartan-store-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~ScratchFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Sizes below, at and above a block of 256 KiB; odd ones, a scalar, an empty one, every dtype.
inline std::vector<store::TensorInfo> sample_tensors() {
  return {{"model/embed.weight", DType::f32, {257, 301}},
          {"model/layers.0.norm.weight", DType::f32, {65}},
          {"model/layers.0.up.weight", DType::f32, {256, 256}},
          {"model/layers.1.bf16", DType::bf16, {3, 7, 11}},
          {"model/layers.1.f16", DType::f16, {131073}},
          {"model/empty", DType::f32, {0, 5}},
          {"model/one", DType::f64, {}},
          {"optimizer/exp_avg/embed.weight", DType::f32, {257, 301}},
          {"optimizer/exp_avg/layers.0.norm.weight", DType::f32, {65}},
          {"optimizer/exp_avg_sq/layers.0.up.weight", DType::f32, {500000}},
          {"data/order", DType::i64, {17}},
          {"data/counts", DType::i32, {1, 1, 5}}};
}

/// The bytes of a whole tensor; finite numbers where they are floats. Depends on the name and `seed` only.
inline std::vector<std::byte> tensor_bytes(const store::TensorInfo& tensor, std::uint32_t seed = 1) {
  std::vector<std::byte> bytes(tensor.bytes());
  std::uint32_t value =
      seed * 2654435761u + static_cast<std::uint32_t>(tensor.path.size() * 977 + tensor.path.back());
  const std::size_t element = size_of(tensor.dtype);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    value = value * 1664525u + 1013904223u;
    bytes[i] = static_cast<std::byte>(value >> 24);
    if (i % element == element - 1) bytes[i] &= std::byte{0x3f};  // the exponent is in the last bytes
  }
  return bytes;
}

inline std::vector<std::vector<std::byte>> all_bytes(const std::vector<store::TensorInfo>& tensors,
                                                     std::uint32_t seed = 1) {
  std::vector<std::vector<std::byte>> out;
  for (const auto& tensor : tensors) out.push_back(tensor_bytes(tensor, seed));
  return out;
}

enum class Deal { even, odd, last_has_all, crumbs, none_at_first };

/// This rank's slabs of whole tensors in memory.
inline std::vector<store::Slab> deal(const std::vector<store::TensorInfo>& tensors,
                                     std::vector<std::vector<std::byte>>& data, Deal how, int rank,
                                     int ranks) {
  std::vector<store::Slab> slabs;
  const auto add = [&](std::size_t tensor, Index first, Index end) {
    if (first < end)
      slabs.push_back(
          {tensor, first, end - first,
           data[tensor].data() + static_cast<std::size_t>(first) * size_of(tensors[tensor].dtype)});
  };
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const Index n = tensors[t].elements();
    switch (how) {
      case Deal::even:
        add(t, n * rank / ranks, n * (rank + 1) / ranks);
        break;
      case Deal::odd: {  // shares of 1 : 4 : 9 : ...
        Index all = 0, before = 0;
        for (int r = 0; r < ranks; ++r) all += (r + 1) * (r + 1);
        for (int r = 0; r < rank; ++r) before += (r + 1) * (r + 1);
        add(t, n * before / all, n * (before + (rank + 1) * (rank + 1)) / all);
        break;
      }
      case Deal::last_has_all:
        if (rank == ranks - 1) add(t, 0, n);
        break;
      case Deal::crumbs:  // pieces of 1009 elements in turn, the later ones first
        for (Index piece = (n + 1008) / 1009 - 1; piece >= 0; --piece)
          if (piece % ranks == rank) add(t, piece * 1009, std::min(n, (piece + 1) * 1009));
        break;
      case Deal::none_at_first:
        if (ranks == 1) add(t, 0, n);
        if (rank > 0) add(t, n * (rank - 1) / (ranks - 1), n * rank / (ranks - 1));
        break;
    }
  }
  return slabs;
}

inline Json sample_state(Index step) {
  return {{"step", step},
          {"tokens", step * 4096},
          {"loss_scale", 65536.0},
          {"config", {{"run.dir", "r\u00e9sum\u00e9"}, {"optim.lr", 3e-4}}}};
}

/// Writes the sample tensors from one process without MPI.
inline store::WriteReport write_alone(const std::filesystem::path& path, Index step, std::uint32_t seed = 1,
                                      std::vector<store::TensorInfo> tensors = sample_tensors()) {
  const auto comm = comm::make_local_communicator("alone");
  auto data = all_bytes(tensors, seed);
  const auto slabs = deal(tensors, data, Deal::even, 0, 1);
  return store::write_checkpoint(path, sample_state(step), tensors, slabs, *comm, {});
}

/// Reads every tensor whole and compares.
inline void expect_content(const std::filesystem::path& path, const std::vector<store::TensorInfo>& tensors,
                           std::uint32_t seed = 1) {
  const store::CheckpointReader reader(path);
  EXPECT_EQ(reader.tensors(), tensors);
  for (const auto& tensor : tensors) {
    std::vector<std::byte> got(tensor.bytes());
    reader.read(tensor.path, 0, tensor.elements(), got.data());
    EXPECT_TRUE(got == tensor_bytes(tensor, seed)) << tensor.path;
  }
  EXPECT_NO_THROW(reader.verify());
}

/// The message of the Error of class E that `work` throws; a failure of the test if it does not.
template <class E, class Work>
std::string message_of(Work&& work) {
  try {
    work();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another class of error: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no error";
  return "";
}

}  // namespace cartan::testing
