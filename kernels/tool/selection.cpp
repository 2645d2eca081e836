#include "kernels/tool/selection.h"

namespace orrery::tool {

std::vector<const GpuKernel*> select_kernels(std::span<const std::string_view> names) {
  std::vector<const GpuKernel*> kernels;
  for (const std::string_view name : names) kernels.push_back(&gpu_kernel(name));
  if (names.empty()) {
    for (const GpuKernel& kernel : gpu_kernels()) kernels.push_back(&kernel);
  }
  return kernels;
}

std::string describe(const KernelOp& op) {
  std::string text = op.kernel + " " + std::string(to_text(op.dtype));
  for (const Dim& dim : op.dims) text += " " + dim.name + "=" + std::to_string(dim.size);
  return text;
}

}  // namespace orrery::tool
