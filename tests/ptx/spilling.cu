// A kernel that keeps 48 numbers in registers: with 32 registers it spills.
__global__ void keep_all(const float* x, float* y, int steps) {
  constexpr int kCount = 48;
  float value[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) value[i] = x[i];
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) value[i] += value[(i + 7) % kCount];
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) y[i] = value[i];
}
