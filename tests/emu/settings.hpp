// What the environment asks of the emulated GPU, read once when a program starts. Tests may change `config`
// and `policy` between operations.
//
//   EMU_SCHEDULE=eager|lazy|random:SEED      which stream goes on next
//   EMU_ORDER=forward|reverse|shuffled:SEED  which thread of a block goes on next
//   EMU_CHECK=1                    check the accesses of kernels and of operations
//   EMU_PRINT=1                    print findings where they are found
//   EMU_PROFILE=1                  print at the end how kernels access memory (access_patterns.hpp)
//   EMU_RECORD=FILE                write every launch with the memory around it (record.hpp)
//   EMU_DEVICE_BYTES=N             memory of the device
//   EMU_GPUS=N, EMU_NO_DRIVER=1    what cudaGetDeviceCount finds
//   EMU_MULTIPROCESSORS=N          of a GPU, which decide how large a product the speed is measured with
//   EMU_PCI_BUS=N                  of the first GPU; without it, a single GPU is the rank's own
//   EMU_TIMEOUT=SECONDS            without progress: a deadlock
//   EMU_FAIL=CALL:N[@RANK]         the N-th call of that name fails (in that process of the job); "kernel" is
//                                  a kernel that fails while it runs, "ncclAsync" a connection that breaks,
//                                  "ncclLost" a rank that its peers wait for when they connect
#pragma once

#include <cstddef>
#include <string>

namespace emu {

enum class Schedule {
  eager,   ///< what can run does so at once
  lazy,    ///< nothing runs before the host waits for it
  random,  ///< while the host waits, any stream that can go on
};

/// One call that is to fail.
struct Failure {
  std::string call;
  int number = 0;  ///< from 1; 0: none
  int calls = 0;   ///< so far
};

struct Config {
  Schedule schedule = Schedule::eager;
  unsigned seed = 1;
  bool race = false;     ///< check accesses
  bool print = false;    ///< findings go to stderr too
  bool profile = false;  ///< collect access patterns
  double timeout_s = 60;
  std::size_t device_bytes = std::size_t{4} << 30;
  int gpus = 1;
  int multiprocessors = 132;
  int first_bus = 1;  ///< PCI bus of the first GPU; the next ones follow
  bool has_driver = true;
  Failure failure;
};
extern Config config;
Config config_from_environment();

enum class Order { forward, reverse, shuffled };

/// In which order the threads of a block, and the blocks of a grid, run.
struct Policy {
  Order order = Order::forward;
  unsigned seed = 1;
};
extern Policy policy;
Policy policy_from_environment();

}  // namespace emu
