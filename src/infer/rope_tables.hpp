// Rotary tables of texts that are written together: where a longer text turns all its positions otherwise
// (dynamic, longrope), texts of different lengths have different ones.
#pragma once

#include <algorithm>
#include <vector>

#include "cartan/model/block.hpp"

namespace cartan::infer {

class RopeTables {
 public:
  /// For `texts` texts at a time, of up to `positions` tokens.
  RopeTables(const model::ModelConfig& config, Index texts, Index positions, device::Device& device);

  /// Makes `table` that of a text of `length` tokens; so far it was the text's, or kNone. Whether all its
  /// positions turn otherwise from now on.
  bool turn(Index& table, Index length);
  /// A text is over.
  void leave(Index table) { --users_[static_cast<std::size_t>(table)]; }
  /// All texts are.
  void leave_all() { std::fill(users_.begin(), users_.end(), 0); }

  static constexpr Index kNone = -1;

  /// All tables, one after another.
  const model::RopeTable& all() const { return all_; }
  Index first_row(Index table) const { return table * positions_; }

 private:
  void fill(Index table, Index length);

  model::ModelConfig config_;
  Index positions_;
  device::Device& device_;
  model::RopeTable all_;
  std::vector<std::vector<double>> frequencies_;  ///< of each table; empty: it was never used
  std::vector<Index> users_;
};

}  // namespace cartan::infer
