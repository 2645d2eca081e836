#include <algorithm>
#include <array>
#include <stdexcept>

#include "kernels/harness/gpu_kernel.h"
#include "sim/units/nearest.h"

namespace orrery {

// The table of kernels with device code; KERNEL(name) stands for name_gpu() in
// kernels/<name>/gpu.cu.
#define ORRERY_GPU_KERNELS(KERNEL) \
  KERNEL(gemm)                     \
  KERNEL(batched_gemm)             \
  KERNEL(grouped_gemm)             \
  KERNEL(grouped_gemm_scatter)     \
  KERNEL(attention_prefill)        \
  KERNEL(attention_decode)         \
  KERNEL(mla_prefill)              \
  KERNEL(mla_decode)               \
  KERNEL(rms_norm)                 \
  KERNEL(add_rms_norm)             \
  KERNEL(rope)                     \
  KERNEL(kv_append)                \
  KERNEL(kv_gather)                \
  KERNEL(silu_mul)                 \
  KERNEL(quantize)                 \
  KERNEL(residual_add)             \
  KERNEL(embedding)                \
  KERNEL(sample)                   \
  KERNEL(routing_scores)           \
  KERNEL(index_shuffling)          \
  KERNEL(gather_mul)               \
  KERNEL(scatter_add)              \
  KERNEL(combine_shuffling)        \
  KERNEL(split_shuffling)          \
  KERNEL(expert_gather)            \
  KERNEL(expert_gemm)

#define ORRERY_DECLARE_GPU(name) GpuKernel name##_gpu();
ORRERY_GPU_KERNELS(ORRERY_DECLARE_GPU)
#undef ORRERY_DECLARE_GPU

std::span<const GpuKernel> gpu_kernels() {
#define ORRERY_CALL_GPU(name) name##_gpu(),
  static const std::array kernels{ORRERY_GPU_KERNELS(ORRERY_CALL_GPU)};
#undef ORRERY_CALL_GPU
  return kernels;
}

const GpuKernel& gpu_kernel(std::string_view name) {
  const auto kernels = gpu_kernels();
  const auto found = std::ranges::find(kernels, name, &GpuKernel::name);
  if (found != kernels.end()) return *found;
  std::vector<std::string_view> known;
  for (const GpuKernel& kernel : kernels) known.push_back(kernel.name);
  throw std::invalid_argument("no device code for kernel \"" + std::string(name) +
                              "\", nearest is \"" + nearest(name, known) + "\"");
}

}  // namespace orrery
