#include <cuda_runtime_api.h>

#include <cstdio>
#include <stdexcept>
#include <string>

#include "kernels/execute/executor.h"
#include "kernels/harness/measure.h"
#include "kernels/kernel_spec.h"
#include "kernels/tool/commands.h"
#include "kernels/tool/peers.h"
#include "kernels/tool/probes.h"
#include "kernels/tool/selection.h"

namespace orrery::tool {
namespace {

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
  const std::string_view what = arguments.empty() ? "" : arguments[0];
  if (is_peer_timing(what)) {
    set_execute_environment();  // tables are of collectives as steps make them
    require_gpu();
    return time_peers(what, arguments.subspan(1));
  }
  if (what == "launch" || what == "trace" || what == "memory" || what == "probes" ||
      what == "machine" || what == "host_link" || what == "corun") {
    if (arguments.size() > (what == "corun" ? 2 : 1)) {
      throw std::invalid_argument("time " + std::string(what) + ": too many arguments");
    }
    require_gpu();
    if (what == "launch") print_launch_probes();
    if (what == "trace") print_trace_probes();
    if (what == "memory") print_memory_probes();
    if (what == "machine") print_machine_probes();
    if (what == "host_link") print_host_link_probes();
    if (what == "probes") print_all_probes();
    if (what == "corun") print_co_runs(arguments.size() > 1 ? arguments[1] : "");
    return 0;
  }
  const auto kernels = select_kernels(arguments);
  require_gpu();
  for (const GpuKernel* kernel : kernels) {
    for (const KernelOp& op : kernel->bench_ops()) print_time(*kernel, op);
  }
  return 0;
}

}  // namespace orrery::tool
