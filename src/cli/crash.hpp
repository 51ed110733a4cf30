// Says which rank crashed. A signal like SIGSEGV is a defect of cartan or of a library: exit code 70.
#pragma once

namespace cartan::cli {

/// For SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT: one line with the rank, the stack's addresses, and an end
/// of the process that the launcher notices. Does nothing under a sanitizer, whose own report is better.
void install_crash_handlers(int rank);

}  // namespace cartan::cli
