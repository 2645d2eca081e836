#pragma once

// The linear layer y[m, n] = x[m, k] w[n, k]^T + bias[n] on tensor cores.

#include <cstddef>
#include <memory>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"
#include "kernels/dense/gemm/choice.h"

namespace orrery {

// Device pointers, row-major and contiguous, 16-byte aligned. Scales are null for bf16.
struct GemmOperands {
  const void* x = nullptr;         // [m, k]
  const void* w = nullptr;         // [n, k]
  bf16* y = nullptr;               // [m, n]
  const float* x_scale = nullptr;  // [1] or [m]
  const float* w_scale = nullptr;  // [1] or [n]
  const bf16* bias = nullptr;      // [n], added before y is rounded; null where the shape has none
};

// No plan needs more (what PyTorch gives cuBLASLt on Hopper).
inline constexpr std::size_t kGemmWorkspaceBytes = std::size_t{32} << 20;

struct GemmOptions {
  // Times the candidates on operands of its own, rotating past the L2 cache, and keeps the fastest;
  // else choose_gemm() decides. The first plan of a shape in the process decides for those after.
  bool tune = false;
  // The weight-streaming kernel may start while the kernels before it in the stream still run, and
  // fetch weights meanwhile (programmatic dependent launch); x, its scales and y wait for them.
  // Only where nothing queued on the stream writes w, its scales or the bias. Without effect on
  // cuBLASLt's kernels.
  bool overlap = false;
  // kGemmWorkspaceBytes of device memory, 256-byte aligned, in place of one that the plan allocates
  // itself: many plans may share it whose launches are on one stream. It must outlive the plan.
  std::byte* workspace = nullptr;
};

class LtGemm;

// One shape's gemm, made ahead of time: launches allocate nothing and may be captured. They share
// one workspace, so these must be on one stream. Equal shapes give equal plans, and equal operands
// equal results.
class GemmPlan {
 public:
  // Throws std::invalid_argument for a dtype other than bf16 and fp8, k < 1, a negative dim, or a
  // shape that neither kernel takes; fp8 with more than 128 tokens needs n and k to be multiples of
  // 16, with fewer k alone.
  explicit GemmPlan(const GemmShape& shape, const GemmOptions& options = {});
  ~GemmPlan();
  GemmPlan(GemmPlan&&) noexcept;
  GemmPlan& operator=(GemmPlan&&) noexcept;

  // Empty shapes launch nothing. Throws std::invalid_argument for operands that are null or not
  // aligned, cuda::Error or CublasError when the launch fails.
  void launch(const cuda::Stream& stream, const GemmOperands& operands) const;

  [[nodiscard]] const GemmShape& shape() const { return shape_; }
  [[nodiscard]] const GemmChoice& choice() const { return choice_; }

 private:
  GemmShape shape_;
  GemmOptions options_;
  GemmChoice choice_;
  std::unique_ptr<LtGemm> library_;                               // null where it is not chosen
  std::unique_ptr<cuda::DeviceBuffer<std::byte>> own_workspace_;  // null where none is needed
};

}  // namespace orrery
