// First the rules themselves, each on a planted violation, then every file of include/ and src/.
#include "lint/include_rules.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace cartan::lint {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

std::string only_violation(std::string_view path, std::string_view content) {
  const auto found = check_file(path, content);
  EXPECT_EQ(found.size(), 1U) << path;
  return found.empty() ? std::string{} : found.front().text();
}

TEST(IncludeRules, NameFileRoomEdgeAndWhatIsAllowed) {
  EXPECT_THAT(only_violation("src/optim/adamw.cpp", "// adamw\n\n#include \"cartan/train/trainer.hpp\"\n"),
              AllOf(HasSubstr("src/optim/adamw.cpp:3: "), HasSubstr("room 'optim'"),
                    HasSubstr("room 'train'"), HasSubstr("core, device, comm, shard")));
}

TEST(IncludeRules, SeeEveryWayToWriteAnInclude) {
  for (const char* line : {"#include \"cartan/cli/main.hpp\"", "  #  include <cartan/cli/main.hpp>  // why",
                           "#include \"cli/options.hpp\"", "#include \"cartan/nowhere/x.hpp\""})
    EXPECT_EQ(check_file("src/core/log.cpp", line).size(), 1U) << line;
}

TEST(IncludeRules, AcceptOwnRoomAndRoomsAbove) {
  const auto text =
      "#pragma once\n#include <vector>\n#include <sys/stat.h>\n#include \"cartan/core/error.hpp\"\n"
      "#include \"cartan/comm/mesh.hpp\"\n#include \"model/layers/attention.hpp\"\n";
  EXPECT_THAT(check_file("include/cartan/model/stage.hpp", text), IsEmpty());
}

TEST(IncludeRules, KeepMpiInCommAndStore) {
  EXPECT_THAT(only_violation("src/train/trainer.cpp", "#include <mpi.h>\n"), HasSubstr("MPI stays"));
  EXPECT_THAT(check_file("src/comm/mpi/session.cpp", "#include <mpi.h>\n"), IsEmpty());
  EXPECT_THAT(check_file("src/store/hdf5_file.cpp", "#include <mpi.h>\n"), IsEmpty());
}

TEST(IncludeRules, KeepBoostInCli) {
  EXPECT_THAT(only_violation("src/core/config.cpp", "#include <boost/program_options.hpp>\n"),
              HasSubstr("room cli, where Boost stays"));
  EXPECT_THAT(check_file("src/cli/options.cpp", "#include <boost/program_options.hpp>\n"), IsEmpty());
}

TEST(IncludeRules, KeepCudaAndNcclInTheirFolders) {
  for (const char* header : {"cuda_runtime.h", "cuda_bf16.h", "cublas_v2.h"}) {
    const std::string line = std::string("#include <") + header + ">\n";
    EXPECT_THAT(only_violation("src/device/device.cpp", line), HasSubstr("a folder cuda/")) << header;
    EXPECT_THAT(check_file("src/device/cuda/stream.cpp", line), IsEmpty()) << header;
  }
  EXPECT_THAT(only_violation("src/comm/mesh.cpp", "#include <nccl.h>\n"), HasSubstr("a folder nccl/"));
  EXPECT_THAT(check_file("src/comm/nccl/communicator.cpp", "#include <nccl.h>\n"), IsEmpty());
}

TEST(IncludeRules, WantAGuardInHeadersOnly) {
  EXPECT_THAT(only_violation("include/cartan/core/text.hpp", "int f();\n"), HasSubstr("#pragma once"));
  EXPECT_THAT(check_file("src/core/text.cpp", "int f() { return 1; }\n"), IsEmpty());
  EXPECT_THAT(
      check_file("src/device/cpu/block.hpp", "#if defined(BLOCK_HPP) == defined(HWY_TARGET_TOGGLE)\n"),
      IsEmpty());
}

TEST(IncludeRules, RefuseUsingNamespaceInHeadersOnly) {
  EXPECT_THAT(only_violation("include/cartan/core/text.hpp", "#pragma once\nusing namespace std;\n"),
              HasSubstr("text.hpp:2: 'using namespace'"));
  EXPECT_THAT(check_file("src/core/text.cpp", "using namespace std::literals;\n"), IsEmpty());
}

TEST(IncludeRules, RefuseAFolderThatIsNoRoom) {
  EXPECT_THAT(only_violation("src/utils/helpers.cpp", "int f();\n"), HasSubstr("'utils' is not a room"));
}

TEST(IncludeRules, AllowNoCycle) {
  for (const auto& [room, allowed] : allowed_rooms())
    for (const auto& other : allowed) {
      const auto& back = allowed_rooms().at(other);
      EXPECT_EQ(std::count(back.begin(), back.end(), room), 0) << room << " and " << other;
    }
}

TEST(IncludeRules, HoldInEveryFile) {
  namespace fs = std::filesystem;
  const fs::path root = CARTAN_SOURCE_DIR;
  int files = 0;
  for (const char* folder : {"include/cartan", "src"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const auto extension = entry.path().extension();
      if (extension != ".hpp" && extension != ".cpp" && extension != ".cu" && extension != ".cuh") continue;
      std::ifstream in(entry.path());
      std::ostringstream content;
      content << in.rdbuf();
      ++files;
      for (const auto& violation : check_file(fs::relative(entry.path(), root).string(), content.str()))
        ADD_FAILURE() << violation.text();
    }
  }
  EXPECT_GT(files, 20);
}

}  // namespace
}  // namespace cartan::lint
