#pragma once

// Kernels named on the command line, and a call as text.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/harness/gpu_kernel.h"

namespace orrery::tool {

// The kernels of these names, or all of them for none. Throws std::invalid_argument on an unknown
// name.
std::vector<const GpuKernel*> select_kernels(std::span<const std::string_view> names);

// "gemm bf16 m=64 n=8192 k=8192"
std::string describe(const KernelOp& op);

}  // namespace orrery::tool
