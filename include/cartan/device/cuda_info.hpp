// Facts about CUDA and the process's GPU; every build has them.
#pragma once

#include <string>

namespace cartan::device {

/// Of the toolkit that the cuda device was built with, "13.0"; empty in a build without it.
std::string cuda_version();

/// Where on the machine the GPU of this process's cuda device is, "0000:1b:00" (PCI domain, bus, device);
/// empty in a build without CUDA. Throws EnvironmentError.
std::string gpu_address();

}  // namespace cartan::device
