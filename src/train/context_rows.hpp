// The rows of a micro-batch that a rank of context parallelism computes.
#pragma once

#include "cartan/comm/communicator.hpp"
#include "cartan/data/batch.hpp"

namespace cartan::train {

/// Of 2 n equal chunks of each sequence, rank r of n gets chunks r and 2 n - 1 - r (model/context_group.hpp).
/// Positions and document starts stay those in the whole sequence.
data::Batch rows_of_rank(const data::Batch& whole, int rank, int ranks);

/// Throws DataError on every rank, which names the rank whose rows do not continue its neighbour's: over the
/// whole sequence positions must go up by one, or begin again at 0 with a document. `rows` as from
/// rows_of_rank. Collective.
void check_rows(const data::Batch& rows, comm::Communicator& comm);

}  // namespace cartan::train
