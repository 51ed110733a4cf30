#include "cartan/model/linear.hpp"

#include <cmath>

#include "cartan/core/hash.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/model/adapters.hpp"

namespace cartan::model {
namespace {

using device::ArenaMatrix;
using device::ConstMatrix;
using device::ConstVector;
using device::GradientView;
using device::Matrix;
using device::SequenceShape;

/// A matrix as codes.
class Codes {
 public:
  Codes(ConstMatrix x, DType type, bool transposed, const device::Fp8Scale& scale, const Workplace& work)
      : memory_(transposed ? work.arena.matrix(type, x.cols, x.rows)
                           : work.arena.matrix(type, x.rows, x.cols)),
        view_(static_cast<const device::Matrix&>(memory_)) {
    view_.factor = scale.inverse;
    work.ops().to_fp8(x, memory_, transposed, scale, work.stream());
  }
  const ConstMatrix& view() const { return view_; }

 private:
  ArenaMatrix memory_;
  ConstMatrix view_;
};

void multiply(ConstMatrix x, ConstMatrix w, ConstVector bias, Matrix y, bool accumulate, SequenceShape shape,
              const Fp8Linear& fp8, const Workplace& work) {
  if (!fp8 || !device::fits_fp8(shape.length, w.rows, w.cols))
    return work.ops().linear_forward(x, w, bias, y, accumulate, shape, work.stream());
  const Codes x8(x, DType::e4m3, false, fp8.x, work), w8(w, DType::e4m3, false, fp8.w, work);
  work.ops().linear_forward(x8.view(), w8.view(), bias, y, accumulate, shape, work.stream());
}

void multiply_gradient(ConstMatrix dy, ConstMatrix w, Matrix dx, bool accumulate, SequenceShape shape,
                       const Fp8Linear& fp8, const Workplace& work) {
  if (!fp8 || !device::fits_fp8(shape.length, w.rows, w.cols))
    return work.ops().linear_backward_input(dy, w, dx, accumulate, shape, work.stream());
  const Codes dy8(dy, DType::e5m2, false, fp8.dy, work), w8(w, DType::e4m3, true, fp8.w, work);
  work.ops().linear_backward_input(dy8.view(), w8.view(), dx, accumulate, shape, work.stream());
}

void fold_weight(ConstMatrix dy, ConstMatrix x, SequenceShape shape, const GradientView& dw,
                 const GradientView& dbias, const Fp8Linear& fp8, const Workplace& work) {
  if (!fp8 || !device::fits_fp8(shape.length, dy.cols, x.cols, dw))
    return work.ops().linear_backward_weight(dy, x, shape, dw, dbias, work.stream());
  {
    const Codes dy8(dy, DType::e5m2, true, fp8.dy, work), x8(x, DType::e4m3, true, fp8.x, work);
    work.ops().linear_backward_weight(dy8.view(), x8.view(), shape, dw, {}, work.stream());
  }
  if (dbias) work.ops().column_sums(dy, shape, dbias, work.stream());
}

}  // namespace

LinearLayer::LinearLayer(const ModelConfig& config, const UnitSpec& unit,
                         const std::vector<std::string>& names, const Fp8Linear& fp8)
    : fp8_(fp8) {
  const auto find = [&](const std::string& name) -> const ParameterSpec* {
    for (const ParameterSpec& parameter : unit.parameters)
      if (parameter.name == name) return &parameter;
    return nullptr;
  };
  for (const std::string& name : names) {
    const ParameterSpec& w = unit.parameter(name + ".weight");
    cols_ = w.part[1];
    Weight weight{rows_, w.part[0], w.offset, -1, w.trained, false};
    if (const ParameterSpec* bias = find(name + ".bias")) {
      weight.bias = bias->offset;
      weight.bias_trained = bias->trained;
    }
    trains_ = trains_ || weight.trained || weight.bias_trained;
    if (const ParameterSpec* a = find(adapter_a(name))) {
      adapters_.push_back({rows_, weight.rows, a->offset, unit.parameter(adapter_b(name)).offset,
                           a->tensor_dim == 1 ? a->first : 0, hash_text(a->name)});
      trains_ = true;
    }
    rows_ += weight.rows;
    if (!weights_.empty()) {
      Weight& last = weights_.back();
      const bool continues =
          last.offset + last.rows * cols_ == weight.offset && last.trained == weight.trained;
      const bool bias_continues =
          (last.bias < 0 && weight.bias < 0) || (last.bias >= 0 && last.bias + last.rows == weight.bias &&
                                                 last.bias_trained == weight.bias_trained);
      if (continues && bias_continues) {
        last.rows += weight.rows;
        continue;
      }
    }
    weights_.push_back(weight);
  }
  if (adapters_.empty()) return;
  rank_ = config.lora.rank;
  scale_ = static_cast<float>(config.lora.scale());
  dropout_ = config.lora.dropout;
}

ConstMatrix Linear::matrix(Index offset, Index rows, Index cols) const {
  return {device::advance(unit_.data, unit_.dtype, offset), unit_.dtype, rows, cols, cols};
}

ConstVector Linear::bias(const Weight& weight) const {
  if (weight.bias < 0) return {};
  return {device::advance(unit_.data, unit_.dtype, weight.bias), unit_.dtype, weight.rows};
}

void Linear::drop(const Adapter& adapter, ConstMatrix x, Matrix out, Index begin,
                  const Workplace& work) const {
  const auto rows = dropout_.numbers.subspan(narrow<std::size_t>(begin), narrow<std::size_t>(x.rows));
  const device::DropoutRule rule{
      .factor = static_cast<float>(1 / (1 - layer_.dropout_)),
      .threshold = static_cast<std::uint32_t>(std::llround(layer_.dropout_ * 0x1p32)),
      .seed = dropout_.seed,
      .stream = adapter.stream,
      .first_column = adapter.first_col};
  work.ops().dropout(x, rows, rule, out, work.stream());
}

ArenaMatrix Linear::narrowed(const Adapter& adapter, ConstMatrix x, SequenceShape shape,
                             const Workplace& work) const {
  ArenaMatrix u = work.matrix(x.rows, layer_.rank_);
  work.ops().linear_forward(x, matrix(adapter.a, layer_.rank_, layer_.cols_), {}, u, false, shape,
                            work.stream());
  work.ops().dropout(u, {}, {.factor = layer_.scale_}, u, work.stream());
  return u;
}

ArenaMatrix Linear::narrowed_gradient(const Adapter& adapter, ConstMatrix dy, SequenceShape shape,
                                      const Workplace& work) const {
  ArenaMatrix v = work.matrix(dy.rows, layer_.rank_);
  work.ops().linear_backward_input(dy.col_block(adapter.first, adapter.rows),
                                   matrix(adapter.b, adapter.rows, layer_.rank_), v, false, shape,
                                   work.stream());
  work.ops().dropout(v, {}, {.factor = layer_.scale_}, v, work.stream());
  return v;
}

void Linear::forward(ConstMatrix x, Matrix y, bool accumulate, Index begin, SequenceShape shape,
                     const Workplace& work) const {
  for (const Weight& weight : layer_.weights_)
    multiply(x, matrix(weight.offset, weight.rows, layer_.cols_), bias(weight),
             y.col_block(weight.first, weight.rows), accumulate, shape, layer_.fp8_, work);
  for (const Adapter& adapter : layer_.adapters_) {
    ArenaMatrix u;
    if (drops()) {
      const ArenaMatrix dropped = work.matrix(x.rows, x.cols);
      drop(adapter, x, dropped, begin, work);
      u = narrowed(adapter, dropped, shape, work);
    } else {
      u = narrowed(adapter, x, shape, work);
    }
    work.ops().linear_forward(u, matrix(adapter.b, adapter.rows, layer_.rank_), {},
                              y.col_block(adapter.first, adapter.rows), true, shape, work.stream());
  }
}

void Linear::backward_input(ConstMatrix dy, Matrix dx, Index begin, SequenceShape shape,
                            const Workplace& work) const {
  bool accumulate = false;
  for (const Weight& weight : layer_.weights_) {
    multiply_gradient(dy.col_block(weight.first, weight.rows),
                      matrix(weight.offset, weight.rows, layer_.cols_), dx, accumulate, shape, layer_.fp8_,
                      work);
    accumulate = true;
  }
  for (const Adapter& adapter : layer_.adapters_) {
    const ArenaMatrix v = narrowed_gradient(adapter, dy, shape, work);
    const ConstMatrix a = matrix(adapter.a, layer_.rank_, layer_.cols_);
    if (!drops()) {
      work.ops().linear_backward_input(v, a, dx, true, shape, work.stream());
      continue;
    }
    const ArenaMatrix back = work.matrix(dx.rows, dx.cols);
    work.ops().linear_backward_input(v, a, back, false, shape, work.stream());
    drop(adapter, back, back, begin, work);
    work.ops().sum_parts(back, 1, dx, dx, work.stream());
  }
}

void Linear::backward_weight(ConstMatrix dy, ConstMatrix x, SequenceShape shape,
                             const Workplace& work) const {
  const GradientView& gradient = unit_.gradient;
  for (const Weight& weight : layer_.weights_) {
    const ConstMatrix dy_part = dy.col_block(weight.first, weight.rows);
    const GradientView dbias =
        weight.bias >= 0 && weight.bias_trained ? gradient.at(weight.bias) : GradientView{};
    if (weight.trained)
      fold_weight(dy_part, x, shape, gradient.at(weight.offset), dbias, layer_.fp8_, work);
    else if (dbias)
      work.ops().column_sums(dy_part, shape, dbias, work.stream());
  }
  for (const Adapter& adapter : layer_.adapters_) {
    const auto fold = [&](ConstMatrix input) {
      const ArenaMatrix u = narrowed(adapter, input, shape, work);
      work.ops().linear_backward_weight(dy.col_block(adapter.first, adapter.rows), u, shape,
                                        gradient.at(adapter.b), {}, work.stream());
      const ArenaMatrix v = narrowed_gradient(adapter, dy, shape, work);
      work.ops().linear_backward_weight(v, input, shape, gradient.at(adapter.a), {}, work.stream());
    };
    if (!drops()) {
      fold(x);
      continue;
    }
    const ArenaMatrix dropped = work.matrix(x.rows, x.cols);
    drop(adapter, x, dropped, 0, work);
    fold(dropped);
  }
}

}  // namespace cartan::model
