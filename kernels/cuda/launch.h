#pragma once

// Launches a kernel with attributes (cluster, programmatic dependent launch, cooperative) and
// raises its limit of dynamic shared memory when it needs more than the default 48 KiB.

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

#include "kernels/cuda/handles.h"

namespace orrery::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;  // dynamic
  unsigned cluster = 1;          // blocks along x that share a cluster
  // The kernel may start before its predecessor in the stream has finished; it must call
  // cudaGridDependencySynchronize() before it reads what that one wrote.
  bool programmatic = false;
  // All blocks run at once, or the launch fails: they may wait for each other.
  bool cooperative = false;
};

// Lets a kernel have so much dynamic shared memory on the current device. The limit is only raised:
// threads that launch the same kernel with less do not take it from each other. Throws cuda::Error.
void raise_shared_limit(const void* kernel, std::size_t bytes);

// Throws cuda::Error, with the kernel's argument types checked by the compiler.
template <typename... Parameters, typename... Arguments>
void launch(const Stream& stream, const LaunchShape& shape, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  constexpr std::size_t kDefaultSharedBytes = std::size_t{48} * 1024;
  if (shape.shared_bytes > kDefaultSharedBytes) {
    raise_shared_limit(reinterpret_cast<const void*>(kernel), shape.shared_bytes);
  }
  cudaLaunchAttribute attributes[3];
  unsigned count = 0;
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim = {.x = shape.cluster, .y = 1, .z = 1};
    ++count;
  }
  if (shape.programmatic) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count].val.programmaticStreamSerializationAllowed = 1;
    ++count;
  }
  if (shape.cooperative) {
    attributes[count].id = cudaLaunchAttributeCooperative;
    attributes[count].val.cooperative = 1;
    ++count;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream.get();
  config.attrs = attributes;
  config.numAttrs = count;
  ORRERY_CUDA(
      cudaLaunchKernelEx(&config, kernel, Parameters(std::forward<Arguments>(arguments))...));
}

// Loads a kernel's code onto the current device, which its first launch would do otherwise; loading
// waits for running kernels.
template <typename... Parameters>
void load(void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes{};
  ORRERY_CUDA(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
}

// Properties of the current device, read once per device.
const cudaDeviceProp& device_properties();

}  // namespace orrery::cuda
