// `cartan ...` called as a function.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/program.hpp"

namespace cartan::cli {

struct Outcome {
  int code = 0;
  std::string out, err;
};

inline Outcome run(std::vector<std::string> words) {
  words.insert(words.begin(), "cartan");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.code = run_program(static_cast<int>(words.size()), argv.data(), commands());
  std::fflush(stdout);
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.err = testing::internal::GetCapturedStderr();
  return outcome;
}

}  // namespace cartan::cli
