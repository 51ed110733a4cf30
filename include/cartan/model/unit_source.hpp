// Where a stage takes the parameters of its units from, unit by unit.
#pragma once

#include <optional>

#include "cartan/model/block.hpp"

namespace cartan::model {

/// Lends a stage the parameters of its units for as long as it uses them, so that they need not all lie ready
/// in the dtype of computing, or on this rank.
class UnitSource {
 public:
  virtual ~UnitSource() = default;
  /// Unit `index` of the stage, valid until its release. Unit 0 and one other may be held at once.
  virtual UnitView acquire(std::size_t index) = 0;
  virtual void release(std::size_t index) = 0;
  /// The unit that will be acquired next, where bringing it takes time.
  virtual void prefetch(std::size_t index) = 0;
  /// Where the unit's gradients go, without its parameters.
  virtual device::GradientView gradient(std::size_t index) = 0;
};

/// A unit that is given back at the end of the scope.
class HeldUnit {
 public:
  HeldUnit(UnitSource& source, std::size_t index)
      : source_(source), index_(index), view_(source.acquire(index)) {}
  ~HeldUnit() { source_.release(index_); }
  HeldUnit(const HeldUnit&) = delete;
  HeldUnit& operator=(const HeldUnit&) = delete;
  const UnitView& operator*() const { return view_; }
  const UnitView* operator->() const { return &view_; }

 private:
  UnitSource& source_;
  std::size_t index_;
  UnitView view_;
};

/// The parameters of the head while they are in use: its norm, and the matrix, which a tied model has in its
/// embedding.
class HeldHead {
 public:
  /// `rows` of the vocabulary are here.
  HeldHead(const ModelConfig& config, const UnitSpec& spec, UnitSource& units, std::size_t last, Index rows)
      : unit_(units, last) {
    const ParameterSpec& norm = spec.parameter("model.norm.weight");
    norm_ = {device::advance(unit_->data, unit_->dtype, norm.offset), unit_->dtype, config.hidden};
    if (norm.trained) norm_gradient_ = unit_->gradient.at(norm.offset);
    if (config.tied) {
      embedding_.emplace(units, 0);
      matrix_ = {(*embedding_)->data, (*embedding_)->dtype, rows, config.hidden, config.hidden};
    } else {
      matrix_ = {device::advance(unit_->data, unit_->dtype, spec.parameter("lm_head.weight").offset),
                 unit_->dtype, rows, config.hidden, config.hidden};
    }
  }
  const UnitView& unit() const { return *unit_; }
  /// Where the norm's gradient goes; absent where it is not trained.
  const device::GradientView& norm_gradient() const { return norm_gradient_; }
  device::ConstVector norm() const { return norm_; }      ///< [D]
  device::ConstMatrix matrix() const { return matrix_; }  ///< [V, D]

 private:
  HeldUnit unit_;
  std::optional<HeldUnit> embedding_;
  device::ConstVector norm_;
  device::GradientView norm_gradient_;
  device::ConstMatrix matrix_;
};

}  // namespace cartan::model
