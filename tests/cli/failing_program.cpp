// `failing_program fail --who RANK|-1 --how KIND`: the ranks named fail, the others wait in a collective.
#include <array>
#include <cstdlib>

#include "cartan/comm/mesh_groups.hpp"
#include "cli/command.hpp"
#include "cli/program.hpp"

namespace cartan::cli {
namespace {

class Fail : public Command {
 public:
  CommandSpec spec() override {
    return {.name = "fail",
            .sentence = "fail as told",
            .options = {{.key = "who", .target = &who_, .help = "the rank that fails; -1: all of them"},
                        {.key = "how", .target = &how_, .help = "the kind of failure"},
                        {.key = "others", .target = &others_, .help = "the kind of failure of the others"}}};
  }
  bool needs_mpi() const override { return true; }
  int run(Parsed&, comm::Session* session) override {
    comm::Mesh mesh(*session, {.dp = session->world_size()});
    if (who_ < 0 || who_ == session->rank()) fail(how_);
    if (others_ != "wait") fail(others_);
    mesh.world().max(0);  // never complete: somebody is missing
    return 0;
  }

 private:
  static void fail(const std::string& how) {
    if (how == "data") throw DataError("corpus.idx: truncated");
    if (how == "configuration") throw ConfigError("batch.global = 3 does not fit");
    if (how == "peer") throw PeerError("reading failed on another rank");
    if (how == "memory") throw std::bad_alloc();
    if (how == "logic") throw std::logic_error("out of range");
    if (how == "crash") std::abort();
  }

  int who_ = -1;
  std::string how_ = "none", others_ = "wait";
};

}  // namespace
}  // namespace cartan::cli

int main(int argc, char** argv) {
  using namespace cartan::cli;
  const std::array commands{CommandEntry{"fail", [] { return std::unique_ptr<Command>(new Fail); }}};
  return run_program(argc, argv, commands);
}
