// Each rank sends the elements of largest magnitude of what it has to send, as pairs of value and index; all
// add all pairs in the order of ranks.
#include <algorithm>
#include <cmath>
#include <map>

#include "cartan/core/narrow.hpp"
#include "shard/gradient_hook.hpp"

namespace cartan::shard {
namespace {

using device::Vector;

class TopK : public GradientHook {
 public:
  TopK(const ExchangePlace& place, double fraction) : place_(place), residuals_(make_residuals(place)) {
    Index most = 0;
    for (const HookedPart& hooked : hooked_parts(place.state.layout())) {
      Index elements = 0;
      for (const model::ParameterSpec& parameter : hooked.spec->parameters)
        if (parameter.trained) elements += parameter.elements();
      const Index wanted = std::llround(fraction * static_cast<double>(elements));
      const Size size{elements, std::min(elements, std::max<Index>(1, wanted))};
      sizes_[hooked.part->begin] = size;
      most = std::max(most, size.taken);
    }
    pairs_ = place.plane.allocate_exchange(
        place.state.device(), narrow<std::size_t>(most * place.plane.size()) * kPairBytes,
        device::MemoryKind::communication, "largest gradients of all ranks");
  }

  device::Event exchange(const GradientPart& part) override {
    device::Ops& ops = place_.state.device().ops();
    device::Stream& stream = place_.stream;
    const auto [elements, taken] = sizes_.at(part.begin);
    const Vector gradient = place_.whole(part.begin, elements);
    const Vector residual{residuals_.as<float>() + part.begin, DType::f32, elements};
    place_.fold_own(part.begin, elements, place_.all_leaves());
    ops.add(residual, gradient, stream);
    const Pairs own = pairs_of(place_.plane.rank(), taken);
    ops.take_largest(residual, own.values, own.indices, stream);
    std::vector<comm::ByteView> bytes;
    bytes.reserve(narrow<std::size_t>(place_.plane.size()));
    for (int rank = 0; rank < place_.plane.size(); ++rank) bytes.push_back(pairs_of(rank, taken).bytes);
    place_.plane.all_gather_parts(std::move(bytes), stream);
    ops.fill_zero(gradient, stream);
    for (int rank = 0; rank < place_.plane.size(); ++rank) {
      const Pairs pairs = pairs_of(rank, taken);
      ops.scatter_add(gradient, pairs.values, pairs.indices, stream);
    }
    return stream.record();
  }

 private:
  static constexpr std::size_t kPairBytes = sizeof(float) + sizeof(std::uint32_t);
  struct Size {
    Index elements = 0, taken = 0;
  };
  /// What one rank sends: first the values, then the indices.
  struct Pairs {
    comm::ByteView bytes;
    Vector values;
    std::span<std::uint32_t> indices;
  };
  Pairs pairs_of(int rank, Index count) const {
    const std::size_t size = narrow<std::size_t>(count);
    std::byte* const begin = pairs_.as<std::byte>() + narrow<std::size_t>(rank) * size * kPairBytes;
    auto* const indices = reinterpret_cast<std::uint32_t*>(begin + size * sizeof(float));
    return {{begin, size * kPairBytes}, {begin, DType::f32, count}, {indices, size}};
  }

  ExchangePlace place_;
  std::map<Index, Size> sizes_;  ///< by begin of the part
  device::Buffer residuals_, pairs_;
};

}  // namespace

std::unique_ptr<GradientHook> make_topk(const ExchangePlace& place, double fraction) {
  return std::make_unique<TopK>(place, fraction);
}

}  // namespace cartan::shard
