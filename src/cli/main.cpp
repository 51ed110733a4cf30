#include <csignal>

#include "cli/command.hpp"
#include "cli/program.hpp"

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the file size limit fails with a message instead
  return cartan::cli::run_program(argc, argv, cartan::cli::commands());
}
