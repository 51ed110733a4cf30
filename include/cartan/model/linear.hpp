// A linear layer of a block: its products with the matrices that are in the unit, in 8 bits where the layer
// has scales and the shape allows it (fits_fp8), else in the type of its operands, and the adapters beside
// them. The contracts are those of cartan/device/ops.hpp.
//
// Codes live as long as the product: those of w are made anew for each micro-batch, 3 bytes moved a weight,
// so that no copy of the parameters stays.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cartan/model/fp8.hpp"
#include "cartan/model/parameters.hpp"
#include "cartan/model/workplace.hpp"

namespace cartan::model {

/// A unit's parameters in the dtype of computing, and where its gradients go.
struct UnitView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  device::GradientView gradient;
  device::GradientView matrix_gradient;  ///< of the head only: where the gradient of its [V, D] matrix goes
};

/// Which inputs of adapters a training step leaves away: a function of the seed, the row's number and the
/// channel, so that it depends on no mesh.
struct DropoutRows {
  std::span<const std::int32_t> numbers;  ///< of each row of the micro-batch, in the step's global batch
  const std::uint64_t* seed = nullptr;    ///< of the step, in device memory; null: nothing is left away
};

/// Where a linear layer lies in its unit: [rows, cols] of this place of tensor parallelism.
class LinearLayer {
 public:
  LinearLayer() = default;
  /// Of the projections with these names, whose outputs stand side by side; those that are neighbours in the
  /// unit and are trained alike are one product.
  LinearLayer(const ModelConfig& config, const UnitSpec& unit, const std::vector<std::string>& names,
              const Fp8Linear& fp8);

  Index rows() const { return rows_; }
  Index cols() const { return cols_; }
  bool trains() const { return trains_; }

 private:
  friend class Linear;
  struct Weight {
    Index first = 0, rows = 0;  ///< of the layer's output
    Index offset = 0, bias = -1;
    bool trained = true, bias_trained = true;
  };
  struct Adapter {
    Index first = 0, rows = 0;
    Index a = 0, b = 0;        ///< offsets of its matrices
    Index first_col = 0;       ///< of the layer's inputs on all places
    std::uint64_t stream = 0;  ///< of its random numbers
  };

  Index rows_ = 0, cols_ = 0;
  bool trains_ = false;
  std::vector<Weight> weights_;
  std::vector<Adapter> adapters_;
  Index rank_ = 0;
  float scale_ = 1;
  double dropout_ = 0;
  Fp8Linear fp8_;
};

/// A linear layer with the parameters of its unit. Lives no longer than both.
class Linear {
 public:
  Linear(const LinearLayer& layer, const UnitView& unit, const DropoutRows& dropout)
      : layer_(layer), unit_(unit), dropout_(dropout) {}

  const LinearLayer& layer() const { return layer_; }

  // T: rows of x and dy, which are rows `begin` ... of the micro-batch, in sequences as `shape` says.

  /// y = y * accumulate + x w^T + bias + adapters.   x [T, cols], y [T, rows].
  void forward(device::ConstMatrix x, device::Matrix y, bool accumulate, Index begin,
               device::SequenceShape shape, const Workplace& work) const;
  /// dx = dy w + adapters'.   dy [T, rows], dx [T, cols].
  void backward_input(device::ConstMatrix dy, device::Matrix dx, Index begin, device::SequenceShape shape,
                      const Workplace& work) const;
  /// Gradients of what is trained, from a whole micro-batch.
  void backward_weight(device::ConstMatrix dy, device::ConstMatrix x, device::SequenceShape shape,
                       const Workplace& work) const;

 private:
  using Weight = LinearLayer::Weight;
  using Adapter = LinearLayer::Adapter;
  device::ConstMatrix matrix(Index offset, Index rows, Index cols) const;
  device::ConstVector bias(const Weight& weight) const;
  bool drops() const { return dropout_.seed != nullptr && layer_.dropout_ > 0; }
  /// out = x / (1 - dropout), or 0 where it is left away. out may be x.
  void drop(const Adapter& adapter, device::ConstMatrix x, device::Matrix out, Index begin,
            const Workplace& work) const;
  /// scale * dropped x A^T [T, rank].
  device::ArenaMatrix narrowed(const Adapter& adapter, device::ConstMatrix x, device::SequenceShape shape,
                               const Workplace& work) const;
  /// scale * dy B [T, rank].
  device::ArenaMatrix narrowed_gradient(const Adapter& adapter, device::ConstMatrix dy,
                                        device::SequenceShape shape, const Workplace& work) const;

  const LinearLayer& layer_;
  const UnitView& unit_;
  const DropoutRows& dropout_;
};

}  // namespace cartan::model
