#pragma once

// A linear layer for each head of a row, y[m, head, n] = x[m, head, k] w[head]^T, on tensor cores
// (cuBLASLt's strided batches): the GEMMs around latent attention in MLA's absorbed form. Or one
// for each matrix of a batch, y[batch, m, n] = x[batch, m, k] w[batch]^T: experts with their rows
// padded to a common number. fp8 has a scale for each row of x and w, which the library's batches
// do not have: such a batch is a grouped gemm of groups with equally many rows.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"
#include "sim/plan/plan.h"

namespace orrery {

struct BatchedGemmShape {
  DType dtype = DType::kBf16;  // of x and w: bf16, or by matrix fp8
  std::int64_t batch = 0;      // heads
  std::int64_t m = 0;          // rows: tokens
  std::int64_t n = 0;
  std::int64_t k = 0;
  // How a head's weights lie: [n, k] as in a linear layer, or [k, n], what multiplies from the
  // other side (queries into latents with the weights that expand latents into keys).
  bool w_is_transposed = false;
  std::int64_t x_head_stride = 0;  // elements from head to head of x, at least k; 0: k
  // x [batch, m, k] and y [batch, m, n] in place of [m, batch, ...]; no x_head_stride then.
  bool is_by_matrix = false;
  auto operator<=>(const BatchedGemmShape&) const = default;
};

// Device pointers, 16-byte aligned.
struct BatchedGemmOperands {
  const void* x = nullptr;         // [m, batch, k], heads x_head_stride apart; or [batch, m, k]
  const void* w = nullptr;         // [batch, n, k], or [batch, k, n] where w_is_transposed
  bf16* y = nullptr;               // [m, batch, n]; or [batch, m, n]
  const float* x_scale = nullptr;  // of fp8 [batch, m]
  const float* w_scale = nullptr;  // of fp8 [batch, n]
};

// One shape's GEMMs, made ahead of time: launches allocate nothing and may be captured. They share
// one workspace, so these must be on one stream. Sums are fp32, y is rounded once.
class BatchedGemmPlan {
 public:
  // `workspace`: kGemmWorkspaceBytes (kernels/dense/gemm/gemm.h) of device memory, for fp8
  // grouped_gemm_workspace_bytes(), zeroed, 256-byte aligned, that outlives the plan; null: the
  // plan allocates what it needs. Throws std::invalid_argument for batch or k below 1, a negative m
  // or n, sizes of rows that are no multiples of 8, heads that overlap, heads apart in matrices,
  // fp8 by heads and what grouped gemms do not take; CublasError when cuBLASLt has no algorithm.
  explicit BatchedGemmPlan(const BatchedGemmShape& shape, std::byte* workspace = nullptr);
  ~BatchedGemmPlan();
  BatchedGemmPlan(BatchedGemmPlan&&) noexcept;
  BatchedGemmPlan& operator=(BatchedGemmPlan&&) noexcept;

  // Empty shapes launch nothing. Throws std::invalid_argument for operands that are null or not
  // aligned, CublasError when the launch fails.
  void launch(const cuda::Stream& stream, const BatchedGemmOperands& operands) const;
  [[nodiscard]] const BatchedGemmShape& shape() const { return shape_; }

 private:
  struct Library;
  struct Groups;

  BatchedGemmShape shape_;
  std::unique_ptr<Library> library_;  // of bf16; null for empty shapes
  std::unique_ptr<Groups> groups_;    // of fp8, likewise
  std::unique_ptr<cuda::DeviceBuffer<std::byte>> own_workspace_;
  std::byte* workspace_ = nullptr;
};

}  // namespace orrery
