// Operations as those of another table, but what repeats on the compute stream goes out as CUDA graphs
// (replay.hpp).
#pragma once

#include <memory>

#include "cartan/device/ops.hpp"
#include "device/cuda/stream.hpp"

namespace cartan::device::cuda {

/// `ops` and the stream outlive it.
std::unique_ptr<Ops> make_graph_ops(Ops& ops, CudaStream& compute_stream);

}  // namespace cartan::device::cuda
