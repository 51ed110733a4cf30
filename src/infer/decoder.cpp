#include "infer/decoder.hpp"

#include <algorithm>
#include <utility>

#include "cartan/core/error.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/model/unit_source.hpp"

namespace cartan::infer {

using comm::Axis;
using device::ArenaMatrix;
using device::Matrix;
using device::MemoryKind;

namespace {

comm::ByteView bytes_of(const Matrix& m) {
  return {static_cast<std::byte*>(m.data), narrow<std::size_t>(m.rows * m.cols) * size_of(m.dtype)};
}

/// Arrays of integers of a call: tokens, positions, starts of documents and of windows.
constexpr Index kIntegers = 4;

}  // namespace

/// What this rank computes with, among real or imagined peers.
struct Decoder::Groups {
  Groups(const Decoder& of, device::Device& device, comm::Mesh& mesh)
      : tensor(mesh.axis(Axis::tp), {}, model::TensorRows::all),
        context(mesh.axis(Axis::cp), model::ContextExchange::ring, device, false),
        stage(mesh.coordinate().pp),
        stages(mesh.shape().pp),
        pipeline(stages > 1 ? mesh.ring(mesh.axis(Axis::pp), 1, "texts") : nullptr) {
    for (const shard::FlatUnit& unit : of.layout_.units())
      if (unit.spec->layer >= 0) blocks.emplace_back(of.config_, *unit.spec, tensor, context);
  }

  model::TensorGroup tensor;
  model::ContextGroup context;
  int stage, stages;
  std::unique_ptr<comm::Communicator> pipeline;
  std::vector<model::Block> blocks;
};

Decoder::Decoder(const model::ModelConfig& config, shard::FlatState& state, const DecoderOptions& options,
                 device::Device& device, comm::Mesh& mesh)
    : config_(config),
      options_(options),
      device_(device),
      mesh_(mesh),
      compute_(state.compute_dtype()),
      units_(state.units()),
      layout_(state.layout()),
      slice_{mesh.coordinate().tp, mesh.shape().columns()},
      tables_(config, options.texts, options.max_length, device),
      abandon_(mesh) {
  const auto& units = layout_.units();
  has_copy_ = units.front().is_copy;
  first_unit_ = units[has_copy_ ? 1 : 0].number;
  has_head_ = units.back().number + 1 == layout_.model_units();
  options_.rows = std::min(options_.rows, options_.max_length);
  room_ = ceil_div(options_.max_length, mesh.shape().context());
  groups_ = std::make_unique<Groups>(*this, device, mesh);
  blocks_ = std::ssize(groups_->blocks);

  const auto allocate = [&](std::size_t bytes, const char* label) -> device::Buffer& {
    memory_.push_back(device.allocate(bytes, MemoryKind::activations, label));
    return memory_.back();
  };
  const Index width = model::part_of(config_, slice_).kv_heads * config_.head_dim;
  const Index rows = options_.texts * room_;
  for (Index i = 0; i < 2 * blocks_; ++i) {
    const device::Buffer& cache =
        allocate(size_of(compute_) * narrow<std::size_t>(rows * width), "keys and values");
    caches_.push_back(device::as_matrix(cache.data(), compute_, rows, width));
  }
  const Index tokens = std::max(options_.rows, options_.texts);
  integers_ =
      allocate(narrow<std::size_t>(kIntegers * tokens) * sizeof(std::int32_t), "tokens").as<std::int32_t>();
  if (has_head_)
    logits_ = device::as_matrix(
        allocate(narrow<std::size_t>(options_.texts * config_.vocab) * sizeof(float), "logits").data(),
        DType::f32, options_.texts, config_.vocab);
  arena_ = plan_arena();
}

Decoder::~Decoder() = default;

std::unique_ptr<device::Arena> Decoder::plan_arena() {
  device::Arena measuring;
  const auto sim = device::make_sim_device(device_.kind(), {1});
  comm::Mesh imagined = comm::Mesh::imagined(mesh_.shape(), comm::rank_of(mesh_.shape(), mesh_.coordinate()));
  const Groups groups(*this, *sim, imagined);
  const std::vector<std::int32_t> zeros(narrow<std::size_t>(std::max(options_.rows, options_.texts)));
  const auto rehearse = [&](device::SequenceShape shape, bool wants_logits) {
    const std::span<const std::int32_t> integers =
        std::span(zeros).first(narrow<std::size_t>(shape.tokens()));
    model::BatchView batch;
    batch.shape = shape;
    batch.tokens = batch.positions = batch.document_start = batch.window_start = integers;
    const std::vector<model::CachedText> texts(narrow<std::size_t>(shape.sequences), {0, {0, room_}, 0});
    run_in({*sim, measuring, compute_}, groups, batch, texts, wants_logits);
  };
  rehearse({1, options_.rows}, false);
  rehearse({options_.texts, 1}, true);
  return std::make_unique<device::Arena>(mesh_.allocate_exchange(
      device_, measuring.peak(), MemoryKind::activations, "activations of generation"));
}

model::CachedText Decoder::cached_text(const Piece& piece) const {
  const Index ranks = mesh_.shape().context(), rank = mesh_.coordinate().cp;
  const Index each = ceil_div(piece.length, ranks);
  return {piece.cached,
          {std::min(rank * each, piece.length), std::min((rank + 1) * each, piece.length)},
          piece.slot * room_};
}

void Decoder::prefill(const Piece& piece) { run({&piece, 1}, false); }

Matrix Decoder::decode(std::span<const Piece> pieces) {
  run(pieces, true);
  return has_head_ ? logits_.row_block(0, std::ssize(pieces)) : Matrix{};
}

void Decoder::run(std::span<const Piece> pieces, bool wants_logits) {
  const Index length = std::ssize(pieces.front().tokens);
  std::vector<std::int32_t> tokens, positions, starts;
  std::vector<model::CachedText> texts;
  for (const Piece& piece : pieces) {
    CARTAN_ASSERT(std::ssize(piece.tokens) == length && piece.cached + length <= piece.length &&
                  piece.length <= options_.max_length);
    tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
    for (Index i = 0; i < length; ++i) {
      const Index position = piece.cached + i;
      positions.push_back(narrow<std::int32_t>(tables_.first_row(piece.table) + position));
      starts.push_back(
          narrow<std::int32_t>(config_.window > 0 ? std::max<Index>(0, position + 1 - config_.window) : 0));
    }
    texts.push_back(cached_text(piece));
  }
  std::int32_t* next = integers_;
  const auto upload = [&](const std::vector<std::int32_t>& values) {
    device_.copy_in(next, values.data(), values.size() * sizeof(std::int32_t), device_.compute_stream());
    return std::span<const std::int32_t>(std::exchange(next, next + values.size()), values.size());
  };
  model::BatchView batch;
  batch.shape = {std::ssize(pieces), length};
  batch.tokens = upload(tokens);
  batch.positions = upload(positions);
  batch.document_start = upload(std::vector<std::int32_t>(tokens.size(), 0));
  if (config_.window > 0) batch.window_start = upload(starts);
  run_in({device_, *arena_, compute_}, *groups_, batch, texts, wants_logits);
}

void Decoder::run_in(const model::Workplace& work, const Groups& groups, const model::BatchView& batch,
                     std::span<const model::CachedText> texts, bool wants_logits) {
  const Index count = batch.shape.tokens();
  ArenaMatrix x = work.matrix(count, config_.hidden);
  if (first_unit_ == 0) {
    const model::HeldUnit unit(units_, 0);
    const device::ConstMatrix table{unit->data, unit->dtype, model::part_of(config_, slice_).vocab,
                                    config_.hidden, config_.hidden};
    const Index first = model::first_vocabulary_row(config_, slice_);
    if (groups.tensor.is_alone()) {
      work.ops().embedding_forward(batch.tokens, table, first, x, work.stream());
    } else {
      const ArenaMatrix partial = work.matrix(count, config_.hidden);
      work.ops().embedding_forward(batch.tokens, table, first, partial, work.stream());
      groups.tensor.sum_to_owners(partial, {}, x, batch.shape, work);
    }
  } else {
    groups.pipeline->receive(bytes_of(x), groups.stage - 1, work.stream());
  }
  for (std::size_t i = 0; i < groups.blocks.size(); ++i) {
    const model::HeldUnit unit(units_, block_unit(i));
    model::BlockActivations passing;
    passing.x = std::move(x);
    x = work.matrix(count, config_.hidden);
    groups.blocks[i].decode(batch, texts, *unit, tables_.all(), passing, caches_[2 * i], caches_[2 * i + 1],
                            x, work);
  }
  if (!has_head_)
    groups.pipeline->send(bytes_of(x), groups.stage + 1, work.stream());
  else if (wants_logits)
    make_logits(work, groups, x);
}

void Decoder::make_logits(const model::Workplace& work, const Groups& groups, const Matrix& x) {
  const Index texts = x.rows;
  const auto vocabulary = [&](int place) {
    return model::part_of(config_, model::TensorSlice{place, slice_.count}).vocab;
  };
  const ArenaMatrix norm = work.matrix(texts, config_.hidden);
  const model::HeldHead head(config_, *layout_.units().back().spec, units_, layout_.units().size() - 1,
                             vocabulary(slice_.index));
  work.ops().rmsnorm_forward(x, head.norm(), static_cast<float>(config_.norm_eps), norm, {}, work.stream());
  const Matrix logits = logits_.row_block(0, texts);
  if (groups.tensor.is_alone()) {
    work.ops().linear_forward(norm, head.matrix(), {}, logits, false, {texts, 1}, work.stream());
    return;
  }
  // One place's columns after another's, then side by side.
  const device::ArenaVector all = work.arena.vector(DType::f32, texts * config_.vocab);
  const auto columns_of = [&](int place) {
    const Index first = model::first_vocabulary_row(config_, {place, slice_.count});
    return device::as_matrix(device::advance(all.data, DType::f32, texts * first), DType::f32, texts,
                             vocabulary(place));
  };
  work.ops().linear_forward(norm, head.matrix(), {}, columns_of(slice_.index), false, {texts, 1},
                            work.stream());
  std::vector<comm::ByteView> parts;
  parts.reserve(narrow<std::size_t>(slice_.count));
  for (int place = 0; place < slice_.count; ++place) parts.push_back(bytes_of(columns_of(place)));
  groups.tensor.communicator()->all_gather_parts(std::move(parts), work.stream());
  for (int place = 0; place < slice_.count; ++place)
    work.ops().copy(
        columns_of(place),
        logits.col_block(model::first_vocabulary_row(config_, {place, slice_.count}), vocabulary(place)),
        work.stream());
}

}  // namespace cartan::infer
