#include "kernels/harness/check.h"

#include <algorithm>

namespace orrery {
namespace {

bool all_pass(const std::vector<Difference>& differences) {
  return std::ranges::all_of(differences, &Difference::passes);
}

void overwrite(const cuda::Stream& stream, const Tile& tile, int byte) {
  ORRERY_CUDA(cudaMemsetAsync(tile.data, byte, tile.bytes, stream.get()));
}

}  // namespace

bool CheckReport::passes() const {
  return !differences.empty() && all_pass(differences) && unnoticed.empty();
}

CheckReport check_once(KernelCase& kernel_case) {
  const cuda::Stream stream;
  CheckReport report;
  kernel_case.reset(stream);
  kernel_case.launch(stream, 0);
  report.differences = kernel_case.differences(stream);
  return report;
}

CheckReport check_case(KernelCase& kernel_case) {
  constexpr int kZero = 0x00;
  constexpr int kNan = 0xFF;
  CheckReport report = check_once(kernel_case);
  const cuda::Stream stream;
  for (const Tile& tile : kernel_case.tiles()) {
    kernel_case.reset(stream);
    if (!tile.is_output) overwrite(stream, tile, kZero);
    kernel_case.launch(stream, 0);
    if (tile.is_output) overwrite(stream, tile, kNan);
    if (all_pass(kernel_case.differences(stream))) report.unnoticed.push_back(tile.what);
  }
  return report;
}

CheckReport check_case(const GpuKernel& kernel, const KernelOp& op) {
  return check_case(*kernel.make_case(op, {.vary = true}));
}

}  // namespace orrery
