// Names for addresses in the code of the running program, from its debugging information (addr2line).
#pragma once

#include <string>
#include <vector>

namespace emu {

/// The name of a kernel without scopes and parameters: "adamw_kernel<float>".
std::string kernel_name(const void* function);

/// The line of a kernel that an instruction belongs to, "norm.cu:88"; where that line is in a function that
/// the kernel inlines, "base.cuh:57 (norm.cu:88)".
std::string source_line(const void* code);
/// Many at once: later calls of kernel_name and source_line for them are quick.
void learn_symbols(const std::vector<const void*>& functions, const std::vector<const void*>& codes);

}  // namespace emu
