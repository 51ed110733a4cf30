// From the words of `cartan COMMAND ...` to an exit code: dispatch, help, and the one place where errors
// become messages and codes.
#pragma once

#include <span>
#include <string>

#include "cli/command.hpp"

namespace cartan::cli {

/// The whole program, given its commands. Results go to stdout, errors as "cartan: ..." to stderr.
///
/// Of a job with several ranks one rank speaks, and nobody needs to agree on who: rank 0 reports its error at
/// once and ends the job; other ranks wait for a moment first, so that an error that rank 0 has too is said
/// once, and theirs if rank 0 is well. A PeerError waits longest, since the rank that failed first says more.
int run_program(int argc, char** argv, std::span<const CommandEntry> commands);

/// Names of commands that later versions bring; refused as such.
std::span<const std::string> later_commands();

}  // namespace cartan::cli
