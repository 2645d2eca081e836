#include "kernels/execute/inject.h"

#include "kernels/cuda/nccl.h"

namespace orrery {
namespace {

// In a thread of the driver, which must not be thrown through.
void stall(void*) { inject_in_thread(FaultKind::kHang); }

}  // namespace

void inject(FaultKind kind, const cuda::Stream& stream) {
  if (kind != FaultKind::kStall) inject_in_thread(kind);
  switch (kind) {
    case FaultKind::kThrow:
    case FaultKind::kHang:
    case FaultKind::kKill:
    case FaultKind::kNan:
      return;
    case FaultKind::kNccl:  // a call without a communicator
      ORRERY_NCCL(
          cuda::nccl().all_reduce(nullptr, nullptr, 1, ncclFloat, ncclSum, nullptr, stream.get()));
      return;
    case FaultKind::kStall:
      ORRERY_CUDA(cudaLaunchHostFunc(stream.get(), stall, nullptr));
      return;
  }
}

}  // namespace orrery
