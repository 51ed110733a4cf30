// What is wrong with a matrix product, as NVIDIA's manual states the rules.
#pragma once

#include <cstddef>

#include "cublaslt_objects.hpp"

namespace emu {

/// One call with copies of all that the caller may change afterwards.
struct MatmulCall {
  MatmulDescription description;
  MatrixLayout a, b, c, d;
  MatmulAlgorithm algorithm;
  float alpha, beta;
  const unsigned char *a_data, *b_data, *c_data;
  unsigned char* d_data;
  unsigned char* workspace;
  std::size_t workspace_bytes;

  Matmul product() const { return {description, a, b, c, d}; }
};

/// Exponent of the largest power of two up to 256 that divides an address.
int alignment_of(const void* data);

// Each gives what is wrong, or null.

/// Shapes, types and the epilogue.
const char* fault_in(const Matmul& product);
/// What of the product is not what the algorithm was chosen for.
const char* mismatch(const Matmul& product, const MatmulAlgorithm& algorithm);
/// Addresses that are less aligned than the algorithm was promised.
const char* misalignment(const MatmulCall& call);
/// Memory that is not the device's, too small, or used twice.
const char* fault_in_memory(const MatmulCall& call);

}  // namespace emu
