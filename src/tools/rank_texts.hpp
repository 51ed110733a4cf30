// What each rank has to say, brought to all ranks and put into one sentence.
#pragma once

#include <string>
#include <vector>

#include "cartan/comm/communicator.hpp"
#include "cartan/core/error.hpp"

namespace cartan::tools {

using Texts = std::vector<std::string>;

/// The text of each rank, on all. Collective.
Texts gather(comm::Communicator& world, const std::string& own);

/// Of the texts of all ranks: "a (ranks 0, 2), b (rank 1)"; without the ranks where all say the same.
std::string summary(const Texts& texts);

/// By rank, what went wrong, "nothing wrong" where nothing did; empty where nothing did anywhere. Collective.
Texts gather_failures(comm::Communicator& world, const std::string& own);

/// gather_failures() of what `attempt` throws.
template <class Attempt>
Texts failures(comm::Communicator& world, const Attempt& attempt) {
  std::string failure;
  try {
    attempt();
  } catch (const Error& error) {
    failure = error.what();
  }
  return gather_failures(world, failure);
}

}  // namespace cartan::tools
