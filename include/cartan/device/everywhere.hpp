// For what is written once for every device: nvcc wants to be told that a function is one of the GPU too.
#pragma once

#ifdef __CUDACC__
#define CARTAN_EVERYWHERE __host__ __device__
#else
#define CARTAN_EVERYWHERE
#endif
