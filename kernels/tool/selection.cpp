#include "kernels/tool/selection.h"

#include "kernels/calibrate/row.h"

namespace orrery::tool {

std::vector<const GpuKernel*> select_kernels(std::span<const std::string_view> names) {
  std::vector<const GpuKernel*> kernels;
  for (const std::string_view name : names) kernels.push_back(&gpu_kernel(name));
  if (names.empty()) {
    for (const GpuKernel& kernel : gpu_kernels()) kernels.push_back(&kernel);
  }
  return kernels;
}

std::string describe(const KernelOp& op) { return calibrate::op_text(op); }

}  // namespace orrery::tool
