// Element types and sums of NCCL.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <vector>

namespace emu::nccl {

/// Bytes of an element; 0 for a type that is not emulated.
std::size_t size_of(ncclDataType_t type);

/// Whether elements of the type can be reduced so.
bool can_reduce(ncclDataType_t type, ncclRedOp_t reduction);

/// to[i] = reduction over ranks of sources[rank][i]. The order of a floating-point sum is a ring's: each
/// block of elements starts at another rank, and 16-bit sums are rounded after each addition. It is not the
/// order of ranks, so that no promise can rest on one. All ranks get the same bits. `first` is the index of
/// the first element in the whole array.
void reduce(ncclDataType_t type, ncclRedOp_t reduction, const std::vector<const unsigned char*>& sources,
            std::size_t first, std::size_t count, unsigned char* to);

}  // namespace emu::nccl
