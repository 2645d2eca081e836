#pragma once

// Values of the host in device memory that is allocated for them.

#include <span>

#include "kernels/cuda/handles.h"

namespace orrery {

// A buffer that holds `values` (int32_t, float, …), complete on return.
template <typename T>
cuda::DeviceBuffer<T> device_copy(std::span<const T> values) {
  cuda::DeviceBuffer<T> buffer(values.size());
  const cuda::Stream stream;
  ORRERY_CUDA(cudaMemcpyAsync(buffer.get(), values.data(), values.size_bytes(),
                              cudaMemcpyHostToDevice, stream.get()));
  stream.synchronize();
  return buffer;
}

}  // namespace orrery
