#include "kernels/cuda/gate.h"

namespace orrery::cuda {
namespace {

__global__ void wait_kernel(const volatile int* open) {
  while (*open == 0) {
  }
}

}  // namespace

void Gate::close(const Stream& stream) {
  *static_cast<volatile int*>(open_.get()) = 0;
  wait_kernel<<<1, 1, 0, stream.get()>>>(open_.get());
  ORRERY_CUDA(cudaPeekAtLastError());
}

}  // namespace orrery::cuda
