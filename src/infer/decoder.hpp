// The part of a model that a place of a mesh has, run over tokens of texts that go on, with the keys and
// values of what came before. Ranks of tensor parallelism hold slices of weights and caches and have all
// rows; stages hand rows on; ranks of cp keep equal parts of each text's positions.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cartan/comm/mesh_groups.hpp"
#include "cartan/model/stage.hpp"
#include "cartan/shard/flat_state.hpp"
#include "infer/rope_tables.hpp"

namespace cartan::infer {

struct DecoderOptions {
  Index max_length = 0;  ///< of a text
  Index texts = 1;       ///< that are kept at a time
  Index rows = 128;      ///< tokens of a text that are computed together
};

/// Tokens that a text goes on with.
struct Piece {
  Index slot = 0;    ///< place of its keys and values, below DecoderOptions::texts
  Index cached = 0;  ///< its tokens before these, which were run in this slot with this table
  Index length = 0;  ///< that it may come to at most: ranks of cp share it
  Index table = 0;   ///< see RopeTables
  std::span<const std::int32_t> tokens;
};

class Decoder {
 public:
  /// Collective over the mesh. `state` has the units and slices of this rank's place (train::load_model).
  Decoder(const model::ModelConfig& config, shard::FlatState& state, const DecoderOptions& options,
          device::Device& device, comm::Mesh& mesh);
  ~Decoder();

  const DecoderOptions& options() const { return options_; }
  RopeTables& tables() { return tables_; }
  /// Whether this rank has the head, hence logits.
  bool has_head() const { return has_head_; }

  /// Keys and values of up to options().rows tokens of one text. Collective over the ranks of the replica.
  void prefill(const Piece& piece);
  /// One token of each text, as many as there are slots at most. Returns the logits after them, fp32 [pieces,
  /// V], where has_head(). A row's bits depend on its text only. So too collective.
  device::Matrix decode(std::span<const Piece> pieces);

 private:
  struct Groups;

  void run(std::span<const Piece> pieces, bool wants_logits);
  void run_in(const model::Workplace& work, const Groups& groups, const model::BatchView& batch,
              std::span<const model::CachedText> texts, bool wants_logits);
  void make_logits(const model::Workplace& work, const Groups& groups, const device::Matrix& x);
  /// An arena that suffices for the largest calls.
  std::unique_ptr<device::Arena> plan_arena();
  /// The positions of a text that this rank keeps.
  model::CachedText cached_text(const Piece& piece) const;
  std::size_t block_unit(std::size_t block) const { return block + (first_unit_ == 0 || has_copy_ ? 1 : 0); }

  model::ModelConfig config_;
  DecoderOptions options_;
  device::Device& device_;
  comm::Mesh& mesh_;
  DType compute_;
  shard::FlatUnits units_;
  const shard::FlatLayout& layout_;
  model::TensorSlice slice_;
  Index first_unit_ = 0, blocks_ = 0;
  bool has_head_ = false, has_copy_ = false;  ///< copy: of the tied embedding, for the head
  Index room_ = 0;                            ///< positions of a text that this rank can keep
  RopeTables tables_;
  std::vector<device::Buffer> memory_;
  std::int32_t* integers_ = nullptr;
  device::Matrix logits_;
  std::vector<device::Matrix> caches_;  ///< keys and values of each block in turn, [texts * room, K C]
  std::unique_ptr<Groups> groups_;
  std::unique_ptr<device::Arena> arena_;
  comm::AbandonOnFailure abandon_;  // the last: the others wait for the device when they go
};

}  // namespace cartan::infer
