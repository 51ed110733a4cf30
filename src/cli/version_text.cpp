#include "cli/version_text.hpp"

#include <dnnl.h>
#include <fmt/format.h>
#include <hdf5.h>

#include "cartan/comm/nccl_version.hpp"
#include "cartan/comm/session.hpp"
#include "cartan/core/text.hpp"
#include "cartan/core/version.hpp"
#include "cartan/data/tokenize.hpp"
#include "cartan/device/cuda_info.hpp"

namespace cartan::cli {
namespace {

#if defined(__clang__)
constexpr const char* kCompiler = "Clang " __clang_version__;
#else
constexpr const char* kCompiler = "GCC " __VERSION__;
#endif

std::string hdf5_version() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
#ifdef H5_HAVE_PARALLEL
  constexpr const char* parallel = "yes";
#else
  constexpr const char* parallel = "no";
#endif
  return fmt::format("{}.{}.{}, parallel: {}", major, minor, release, parallel);
}

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("{}.{}.{}", version->major, version->minor, version->patch);
}

std::string cuda_state() {
  const std::string toolkit = device::cuda_version();
  if (toolkit.empty()) return "no (run.device = cpu only)";
  return fmt::format("{}, NCCL {}", toolkit, comm::nccl_version());
}

}  // namespace

std::string version_text() {
  const std::string parquet = data::parquet_library();
  return fmt::format(
      "cartan {}\ncompiler  {}\nMPI       {}\nHDF5      {}\noneDNN    {}\nParquet   {}\nCUDA      {}\n",
      version(), trim(kCompiler), trim(comm::Session::library_version()), hdf5_version(), onednn_version(),
      parquet.empty() ? "no" : parquet, cuda_state());
}

}  // namespace cartan::cli
