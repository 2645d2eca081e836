#pragma once

// The check of one kernel call against its reference, and the check of that check.

#include <string>
#include <vector>

#include "kernels/harness/gpu_kernel.h"

namespace orrery {

struct CheckReport {
  std::vector<Difference> differences;  // of the kernel as it is
  std::vector<std::string> unnoticed;   // tiles whose loss left every difference within its bound
  [[nodiscard]] bool passes() const;
};

// Launches the case on reset operands and compares; then again for each of its tiles with that tile
// lost: zeroed before the launch (operands) or NaN after it (outputs). Throws what the launch
// throws.
CheckReport check_case(KernelCase& kernel_case);
// Only the launch and its comparison, no tile lost: for tools under which a launch takes long.
CheckReport check_once(KernelCase& kernel_case);
// check_case() of a new case; throws what make_case throws, too.
CheckReport check_case(const GpuKernel& kernel, const KernelOp& op);

}  // namespace orrery
