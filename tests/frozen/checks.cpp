// The calls of each kernel that `orrery-gpu` checks, those that it times, and the coarse points
// that `orrery calibrate` begins with. Needs the CUDA toolkit and no GPU.

#include <string>
#include <vector>

#include "kernels/calibrate/points.h"
#include "kernels/calibrate/row.h"
#include "kernels/harness/gpu_kernel.h"
#include "kernels/kernel_spec.h"
#include "tests/frozen/section.h"

namespace orrery::frozen {
namespace {

void print_ops(const char* what, const GpuKernel& kernel, const std::vector<KernelOp>& ops) {
  Section section(std::string(what) + " " + std::string(kernel.name));
  for (const KernelOp& op : ops) section.text(calibrate::op_text(op)).end_line();
  section.print();
}

void print_kernel(const GpuKernel& kernel) {
  print_ops("check", kernel, kernel.check_ops());
  print_ops("time", kernel, kernel.bench_ops());
  std::vector<KernelOp> points;
  for (const Grid& grid : kernel.grids()) {
    for (const calibrate::CoarsePoint& point :
         calibrate::coarse_points(kernel_spec(kernel.name), grid)) {
      points.push_back(point.op);
    }
  }
  print_ops("calibrate", kernel, points);
}

}  // namespace
}  // namespace orrery::frozen

int main() {
  for (const orrery::GpuKernel& kernel : orrery::gpu_kernels())
    orrery::frozen::print_kernel(kernel);
  return 0;
}
