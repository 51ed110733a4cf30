// The products of a linear layer, in 8 bits where the layer has scales and the shape allows it (fits_fp8),
// else in the type of its operands. The contracts are those of cartan/device/ops.hpp.
//
// Codes live as long as the product: those of w are made anew for each micro-batch, 3 bytes moved a weight,
// so that no copy of the parameters stays.
#pragma once

#include "cartan/model/fp8.hpp"
#include "cartan/model/tensor_group.hpp"

namespace cartan::model {

void linear_forward(device::ConstMatrix x, device::ConstMatrix w, device::ConstVector bias, device::Matrix y,
                    bool accumulate, device::SequenceShape shape, const Fp8Linear& fp8,
                    const Workplace& work);
void linear_backward_input(device::ConstMatrix dy, device::ConstMatrix w, device::Matrix dx,
                           device::SequenceShape shape, const Fp8Linear& fp8, const Workplace& work);
void linear_backward_weight(device::ConstMatrix dy, device::ConstMatrix x, device::SequenceShape shape,
                            const device::GradientView& dw, const device::GradientView& dbias,
                            const Fp8Linear& fp8, const Workplace& work);

}  // namespace cartan::model
