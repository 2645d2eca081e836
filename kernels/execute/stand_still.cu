#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/execute/stand_still.h"
#include "sim/units/parse.h"

namespace orrery {
namespace {

__device__ std::uint64_t nanoseconds() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__global__ void stand_still_kernel(std::uint64_t time) {
  const std::uint64_t begin = nanoseconds();
  while (nanoseconds() - begin < time) {
  }
}

}  // namespace

void stand_still(const cuda::Stream& stream, Seconds time) {
  constexpr Seconds kMost{10};
  if (!(time >= Seconds(0) && time <= kMost)) {
    throw std::invalid_argument("a stream stands still for " + to_text(time) + ", expected 0 to " +
                                to_text(kMost));
  }
  cuda::launch(stream, {.grid = dim3(1), .block = dim3(1)}, stand_still_kernel,
               static_cast<std::uint64_t>(time.value() * 1e9));
}

}  // namespace orrery
