#include "kernels/execute/inject.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <thread>

#include "kernels/cuda/nccl.h"

namespace orrery {
namespace {

void say() { std::fprintf(stderr, "%s\n", kFaultMark); }

[[noreturn]] void sleep_for_ever() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace

void inject(FaultKind kind, const cuda::Stream& stream) {
  if (kind != FaultKind::kStall) say();
  switch (kind) {
    case FaultKind::kThrow:
      throw std::runtime_error(kFaultMark);
    case FaultKind::kHang:
      sleep_for_ever();
    case FaultKind::kKill:
      static_cast<void>(std::raise(SIGKILL));
      return;
    case FaultKind::kNccl:  // a call without a communicator
      ORRERY_NCCL(
          cuda::nccl().all_reduce(nullptr, nullptr, 1, ncclFloat, ncclSum, nullptr, stream.get()));
      return;
    case FaultKind::kStall:
      ORRERY_CUDA(cudaLaunchHostFunc(
          stream.get(),
          [](void*) {
            say();
            sleep_for_ever();
          },
          nullptr));
      return;
    case FaultKind::kNan:
      return;
  }
}

}  // namespace orrery
