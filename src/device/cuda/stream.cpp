#include "device/cuda/stream.hpp"

#include "cartan/core/error.hpp"
#include "cartan/device/cuda_stream.hpp"
#include "device/cuda/errors.hpp"

namespace cartan::device::cuda {

class EventPool::Point : public Event::State {
 public:
  Point(std::shared_ptr<EventPool> pool, cudaEvent_t event) : pool_(std::move(pool)), event_(event) {}
  Point(const Point&) = delete;
  Point& operator=(const Point&) = delete;
  ~Point() override {
    const std::lock_guard lock(pool_->mutex_);
    pool_->free_.push_back(event_);
  }

  bool done() const override {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) return false;
    check(state, "work before an event");
    return true;
  }
  void wait() const override { check(cudaEventSynchronize(event_), "work before an event"); }
  cudaEvent_t native() const { return event_; }

 private:
  std::shared_ptr<EventPool> pool_;
  cudaEvent_t event_;
};

EventPool::~EventPool() {
  for (cudaEvent_t event : free_) cudaEventDestroy(event);
}

Event EventPool::record(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      event = free_.back();
      free_.pop_back();
    }
  }
  if (event == nullptr)
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
          "cudaEventCreateWithFlags");
  auto point = std::make_shared<Point>(shared_from_this(), event);
  check(cudaEventRecord(event, stream), "cudaEventRecord");
  return Event(std::move(point));
}

cudaEvent_t EventPool::native(const Event& event) {
  const auto* const point = dynamic_cast<const Point*>(event.state());
  return point == nullptr ? nullptr : point->native();
}

CudaStream::CudaStream(std::string name, std::shared_ptr<EventPool> events)
    : name_(std::move(name)), events_(std::move(events)) {
  check(cudaStreamCreateWithFlags(&native_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

CudaStream::~CudaStream() {
  // An error was, or will be, thrown where somebody waits for the work.
  cudaStreamSynchronize(native_);
  cudaStreamDestroy(native_);
}

void CudaStream::wait(const Event& event) {
  if (const cudaEvent_t point = EventPool::native(event))
    check(cudaStreamWaitEvent(native(), point, 0), "cudaStreamWaitEvent");
  else
    event.wait();
}

void CudaStream::synchronize() { check(cudaStreamSynchronize(native()), name_.c_str()); }

CudaStream& cuda_stream(Stream& stream) {
  auto* const found = dynamic_cast<CudaStream*>(&stream);
  if (found == nullptr) throw InternalError("stream {} does not belong to the cuda device", stream.name());
  return *found;
}

}  // namespace cartan::device::cuda

namespace cartan::device {

CUstream_st* native_stream(Stream& stream) {
  auto* const found = dynamic_cast<cuda::CudaStream*>(&stream);
  return found == nullptr ? nullptr : found->native();
}

void copy_on_gpu(void* to, const void* from, std::size_t size_bytes, Stream& stream) {
  cuda::check(
      cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToDevice, cuda::cuda_stream(stream).native()),
      "cudaMemcpyAsync on the device");
}

void finish_gpu(Stream& compute) noexcept {
  try {
    native_stream(compute);
  } catch (const std::exception&) {
    // What was held could not be enqueued: nothing will use the memory.
  }
  cudaDeviceSynchronize();
}

}  // namespace cartan::device
