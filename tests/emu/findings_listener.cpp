// Fails a test that ends with findings of the emulated GPU. Every test program has this file; in one that
// does not link the emulator there is nothing to ask.
#include <gtest/gtest.h>

#include "emu/findings.hpp"

namespace emu {

// Weak: does not pull the emulator in.
std::vector<std::string> take_reports() __attribute__((weak));

namespace {

class FindingsListener : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo&) override {
    for (const std::string& finding : take_reports())
      ADD_FAILURE() << "the emulated GPU found what this test did not expect: " << finding;
  }
};

// Listeners hear of a test's end in reverse order: the printer, which is there before this one, after it.
[[maybe_unused]] const bool is_listening = [] {
  if (take_reports == nullptr) return false;
  testing::UnitTest::GetInstance()->listeners().Append(new FindingsListener);
  return true;
}();

}  // namespace
}  // namespace emu
