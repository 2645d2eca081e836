#pragma once

// Functions of the CUDA driver without linking libcuda, so that programs start where there is no
// GPU.

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "kernels/cuda/check.h"

namespace orrery::cuda {

// As CUDA `since` (12030: 12.3) has it. Throws std::runtime_error when the driver is older.
template <typename Function>
Function driver_function(const char* name, unsigned since = 12000) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  ORRERY_CUDA(cudaGetDriverEntryPointByVersion(name, &function, since, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess) {
    throw std::runtime_error("the CUDA driver has no " + std::string(name) + ": it is older than " +
                             std::to_string(since / 1000) + "." +
                             std::to_string(since % 1000 / 10));
  }
  return reinterpret_cast<Function>(function);
}

}  // namespace orrery::cuda
