#include "kernels/harness/gpu_kernel.h"

#include <algorithm>
#include <stdexcept>

#include "sim/units/nearest.h"

namespace orrery {

const GpuKernel* find_gpu_kernel(std::string_view name) {
  const auto kernels = gpu_kernels();
  const auto found = std::ranges::find(kernels, name, &GpuKernel::name);
  return found == kernels.end() ? nullptr : &*found;
}

const GpuKernel& gpu_kernel(std::string_view name) {
  if (const GpuKernel* kernel = find_gpu_kernel(name)) return *kernel;
  std::vector<std::string_view> known;
  for (const GpuKernel& kernel : gpu_kernels()) known.push_back(kernel.name);
  throw std::invalid_argument("no device code for kernel \"" + std::string(name) +
                              "\", nearest is \"" + nearest(name, known) + "\"");
}

}  // namespace orrery
