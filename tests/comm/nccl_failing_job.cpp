// A job on emulated GPUs in which something happens to rank 1 while the others wait for it: its connection
// breaks, it leaves by an exception, it stops for ever, or its main thread does not care. Ends as the cartan
// program does.
#include <unistd.h>

#include <cstdio>
#include <string_view>

#include "cartan/comm/mesh_groups.hpp"
#include "emu/settings.hpp"

namespace cartan::comm {
namespace {

void exchange(Mesh& mesh, device::Device& device, std::string_view what) {
  Communicator& plane = mesh.data_plane();
  const auto size = static_cast<std::size_t>(plane.size());
  const auto in = plane.allocate_exchange(device, 64, device::MemoryKind::workspace, "in"),
             out = plane.allocate_exchange(device, 64 * size, device::MemoryKind::workspace, "out");
  const auto stream = device.make_stream("communication");
  const AbandonOnFailure abandon(mesh);
  const auto gather = [&] {
    return plane.all_gather({in.as<const std::byte>(), 64}, {out.as<std::byte>(), 64 * size}, *stream);
  };
  gather().wait();
  if (plane.rank() == 1) {
    if (what == "stop")
      for (;;) pause();
    if (what != "leave") emu::config.failure = {"ncclAsync", 1};
  }
  const device::Event never = gather();
  if (plane.rank() == 1 && what == "leave") throw DataError("rank 1 cannot work");
  if (plane.rank() == 1 && what == "care")
    for (;;) pause();
  never.wait();
  plane.barrier();
}

int run(int argc, char** argv) {
  try {
    Session session(argc, argv);
    emu::config.timeout_s = 60;
    const auto device = device::make_device(device::DeviceKind::cuda, {});
    const std::string_view what = argc > 1 ? argv[1] : "";
    const double timeout_s = what == "stop" ? 1 : 0;
    Mesh mesh(session, {}, device->kind(),
              {.watch = {.interval_s = 0.05, .timeout_s = timeout_s, .grace_s = 1}});
    exchange(mesh, *device, what);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "cartan: %s\n", error.what());
    Session::abort(static_cast<int>(error.code()));
  }
}

}  // namespace
}  // namespace cartan::comm

int main(int argc, char** argv) { return cartan::comm::run(argc, argv); }
