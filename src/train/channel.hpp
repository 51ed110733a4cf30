// One direction between neighbouring stages of a pipeline: rows go to one neighbour and come from the other,
// in FIFO order, on streams of their own, beside computing. One receive is posted at a time; one send is
// under way.
#pragma once

#include <memory>

#include "cartan/comm/communicator.hpp"
#include "cartan/device/arena.hpp"

namespace cartan::train {

class Channel {
 public:
  /// `comm`: a ring of the stages in this direction, used by this channel alone. Without `overlap` everything
  /// runs on the compute stream.
  Channel(comm::Communicator& comm, int from, int to, device::Device& device, bool overlap)
      : comm_(comm),
        device_(device),
        from_(from),
        to_(to),
        send_stream_(overlap ? device.make_stream("send " + comm.name()) : nullptr),
        receive_stream_(overlap ? device.make_stream("receive " + comm.name()) : nullptr) {}

  /// Sends what the compute stream has made so far of `rows`, and keeps it until it is sent.
  void send(device::ArenaMatrix rows) {
    finish_send();
    device::Stream& stream = send_stream_ ? *send_stream_ : device_.compute_stream();
    stream.wait(device_.compute_stream().record());
    sending_ = std::move(rows);
    sent_ = comm_.send(bytes_of(sending_), to_, stream);
  }
  /// Waits until nothing is being sent any more.
  void finish_send() {
    sent_.wait();
    sent_ = {};
    sending_.reset();
  }

  /// Posts the receive of what take() is to return next.
  void post(device::ArenaMatrix room) {
    device::Stream& stream = receive_stream_ ? *receive_stream_ : device_.compute_stream();
    stream.wait(device_.compute_stream().record());  // who had the memory before
    posted_ = std::move(room);
    received_ = comm_.receive(bytes_of(posted_), from_, stream);
  }
  device::ArenaMatrix take() {
    device_.compute_stream().wait(received_);
    received_ = {};
    return std::move(posted_);
  }

 private:
  static comm::ByteView bytes_of(const device::Matrix& m) {
    return {static_cast<std::byte*>(m.data), static_cast<std::size_t>(m.rows * m.cols) * size_of(m.dtype)};
  }

  comm::Communicator& comm_;
  device::Device& device_;
  int from_, to_;
  std::unique_ptr<device::Stream> send_stream_, receive_stream_;
  device::ArenaMatrix sending_, posted_;
  device::Event sent_, received_;
};

}  // namespace cartan::train
