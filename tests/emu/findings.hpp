// Findings: what a program did that a GPU would not forgive, or would forgive only by luck. A test takes them
// and expects none; what nobody took is printed when the program ends, and makes it fail.
#pragma once

#include <string>
#include <vector>

namespace emu {

void report(std::string finding);
std::vector<std::string> take_reports();

/// Whether EMU_FAIL names this call and its turn has come. Counts the calls.
bool is_to_fail(const char* call);

}  // namespace emu
