#include "cli/command.hpp"
#include "cli/program.hpp"

int main(int argc, char** argv) { return cartan::cli::run_program(argc, argv, cartan::cli::commands()); }
