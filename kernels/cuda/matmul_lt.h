#pragma once

// One bf16 GEMM on cuBLASLt, planned once and launched many times: the compute-bound load of
// probes.

#include <cstdint>
#include <memory>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"

namespace orrery {

// y [m, n] = x [m, k] w^T, w [n, k], all row-major bf16 with fp32 accumulation.
class MatmulLt {
 public:
  // `sms` > 0 asks cuBLASLt for a kernel that fills that many SMs, 0 for the whole GPU. Throws
  // std::runtime_error when cuBLASLt has no algorithm.
  MatmulLt(std::int64_t m, std::int64_t n, std::int64_t k, int sms = 0);
  ~MatmulLt();
  MatmulLt(MatmulLt&&) noexcept;
  MatmulLt& operator=(MatmulLt&&) noexcept;

  // Uses a workspace of its own: one launch at a time. May be captured in a graph.
  void launch(const cuda::Stream& stream, bf16* y, const bf16* x, const bf16* w) const;

 private:
  struct Plan;
  std::unique_ptr<Plan> plan_;
};

}  // namespace orrery
