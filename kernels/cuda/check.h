#pragma once

// Errors of the CUDA runtime as exceptions that carry the code, the call's text, file and line.

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace orrery::cuda {

class Error : public std::runtime_error {
 public:
  Error(cudaError_t code, const char* call, const char* file, int line)
      : std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + call + ": " +
                           cudaGetErrorName(code) + " (" + cudaGetErrorString(code) + ")"),
        code_(code) {}
  [[nodiscard]] cudaError_t code() const { return code_; }

 private:
  cudaError_t code_;
};

}  // namespace orrery::cuda

// Clears the last error before throwing; a corrupted context stays so.
#define ORRERY_CUDA(call)                                                  \
  do {                                                                     \
    const cudaError_t orrery_code = (call);                                \
    if (orrery_code != cudaSuccess) {                                      \
      static_cast<void>(cudaGetLastError());                               \
      throw ::orrery::cuda::Error(orrery_code, #call, __FILE__, __LINE__); \
    }                                                                      \
  } while (false)
