// A job in which rank 1 throws while the others wait for it: in a collective of the data plane, of the
// control plane, or in the allocation of exchange memory. Ends as the cartan program does.
#include <cstdio>
#include <string_view>
#include <vector>

#include "cartan/comm/mesh_groups.hpp"

namespace cartan::comm {
namespace {

void wait_for_the_others(Mesh& mesh, std::string_view place) {
  if (place == "control") {
    mesh.world().barrier();
  } else if (place == "exchange") {
    const auto device = device::make_device(device::DeviceKind::cpu, {.threads = 1});
    mesh.world().allocate_exchange(*device, 4096, device::MemoryKind::workspace, "test");
  } else {
    const auto stream = device::make_threaded_stream("communication");
    std::vector<std::byte> in(64), out(64 * static_cast<std::size_t>(mesh.world().size()));
    mesh.world().all_gather(in, out, *stream).wait();
  }
}

int run(int argc, char** argv) {
  try {
    Session session(argc, argv);
    Mesh mesh(session, {});
    if (session.rank() == 1) throw ConfigError("rank 1 cannot work");
    wait_for_the_others(mesh, argc > 1 ? argv[1] : "");
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "cartan: %s\n", error.what());
    Session::abort(static_cast<int>(error.code()));
  }
}

}  // namespace
}  // namespace cartan::comm

int main(int argc, char** argv) { return cartan::comm::run(argc, argv); }
