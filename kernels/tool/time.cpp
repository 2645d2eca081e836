#include <cuda_runtime_api.h>

#include <cstdio>

#include "kernels/harness/measure.h"
#include "kernels/kernel_spec.h"
#include "kernels/probe_launch/probe_launch.h"
#include "kernels/tool/commands.h"
#include "kernels/tool/peers.h"
#include "kernels/tool/selection.h"

namespace orrery::tool {
namespace {

void print_probes() {
  std::printf("probe,median_us,spread,samples\n");
  for (const ProbeRow& row : probe_launch()) {
    std::printf("%s,%.4f,%.4f,%d\n", row.probe.c_str(), row.median.value() * 1e6, row.spread,
                row.samples);
  }
}

void print_time(const GpuKernel& kernel, const KernelOp& op) {
  const Work work = work_of(op);
  const Bytes bytes = work.bytes_read + work.bytes_written;
  const auto kernel_case = kernel.make_case(op, {.sets = sets_for(bytes)});
  const Measurement time = measure(*kernel_case, {});
  std::printf("%-70s %10.2f us  spread %.2f %%  %7.2f TB/s  %7.1f TFLOP/s\n", describe(op).c_str(),
              time.median.value() * 1e6, time.spread * 100, (bytes / time.median).value() * 1e-12,
              (work.flops / time.median).value() * 1e-12);
  std::fflush(stdout);
}

}  // namespace

int time(std::span<const std::string_view> arguments) {
  if (!arguments.empty() && is_peer_timing(arguments[0])) {
    require_gpu();
    return time_peers(arguments[0], arguments.subspan(1));
  }
  const bool launch_costs = arguments.size() == 1 && arguments[0] == "launch";
  const auto kernels = launch_costs ? std::vector<const GpuKernel*>() : select_kernels(arguments);
  require_gpu();
  if (launch_costs) print_probes();
  for (const GpuKernel* kernel : kernels) {
    for (const KernelOp& op : kernel->bench_ops()) print_time(*kernel, op);
  }
  return 0;
}

}  // namespace orrery::tool
