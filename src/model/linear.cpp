#include "model/linear.hpp"

namespace cartan::model {
namespace {

using device::ArenaMatrix;
using device::ConstMatrix;

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

}  // namespace

void linear_forward(ConstMatrix x, ConstMatrix w, device::ConstVector bias, device::Matrix y, bool accumulate,
                    device::SequenceShape shape, const Fp8Linear& fp8, const Workplace& work) {
  if (!fp8 || !device::fits_fp8(shape.length, w.rows, w.cols))
    return work.ops().linear_forward(x, w, bias, y, accumulate, shape, work.stream());
  const Codes x8(x, DType::e4m3, false, fp8.x, work), w8(w, DType::e4m3, false, fp8.w, work);
  work.ops().linear_forward(x8.view(), w8.view(), bias, y, accumulate, shape, work.stream());
}

void linear_backward_input(ConstMatrix dy, ConstMatrix w, device::Matrix dx, device::SequenceShape shape,
                           const Fp8Linear& fp8, const Workplace& work) {
  if (!fp8 || !device::fits_fp8(shape.length, w.rows, w.cols))
    return work.ops().linear_backward_input(dy, w, dx, false, shape, work.stream());
  const Codes dy8(dy, DType::e5m2, false, fp8.dy, work), w8(w, DType::e4m3, true, fp8.w, work);
  work.ops().linear_backward_input(dy8.view(), w8.view(), dx, false, shape, work.stream());
}

void linear_backward_weight(ConstMatrix dy, ConstMatrix x, device::SequenceShape shape,
                            const device::GradientView& dw, const device::GradientView& dbias,
                            const Fp8Linear& fp8, const Workplace& work) {
  if (!fp8 || !device::fits_fp8(shape.length, dy.cols, x.cols, dw))
    return work.ops().linear_backward_weight(dy, x, shape, dw, dbias, work.stream());
  {
    const Codes dy8(dy, DType::e5m2, true, fp8.dy, work), x8(x, DType::e4m3, true, fp8.x, work);
    work.ops().linear_backward_weight(dy8.view(), x8.view(), shape, dw, {}, work.stream());
  }
  if (dbias) work.ops().column_sums(dy, shape, dbias, work.stream());
}

}  // namespace cartan::model
