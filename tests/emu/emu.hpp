// What tests say about the emulated GPU. Findings that a test leaves behind fail it when it ends
// (findings_listener.cpp); a test that provokes some takes them with EXPECT_FINDING.
#pragma once

#include <gmock/gmock.h>

#include <string>

#include "emu/findings.hpp"
#include "emu/settings.hpp"

namespace emu::testing {

/// All findings since the last call, one a line.
inline std::string all_findings() {
  std::string all;
  for (const std::string& finding : take_reports()) all += finding + "\n";
  return all;
}

}  // namespace emu::testing

#define EXPECT_NO_FINDINGS() EXPECT_EQ(emu::testing::all_findings(), "")
/// One of the findings has this text in it; all of them count as expected.
#define EXPECT_FINDING(part) EXPECT_THAT(emu::testing::all_findings(), ::testing::HasSubstr(part))
