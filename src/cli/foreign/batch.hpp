// The algebra of batches that others describe: global = micro * accumulation * replicas of the model. What is
// missing follows from the others once the number of replicas (cartan's mesh.dp) is known.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cartan/core/error.hpp"
#include "cli/foreign/translation.hpp"

namespace cartan::cli::foreign {

/// Reads the three terms by these names and lists them; `accumulation` may be empty.
void take_batch_terms(Fields& fields, const std::string& global, const std::string& micro,
                      const std::string& accumulation, Translation& to);

/// The replicas that all three terms together mean; nothing where one is missing or they do not divide.
std::optional<Index> replicas_of(const BatchTerms& batch);

/// What follows for `replicas`: batch.global, or batch.micro, or nothing. Adds a problem where the terms
/// contradict each other, as DeepSpeed does.
std::vector<Setting> complete_batch(const Translation& translation, Index replicas, Problems& problems);

/// Whether batch.global cannot be known without the number of replicas.
bool needs_replicas(const BatchTerms& batch);

}  // namespace cartan::cli::foreign
