#pragma once

// Times points of calibration on the current device.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/calibrate/journal.h"
#include "kernels/calibrate/monitor.h"
#include "kernels/calibrate/row.h"
#include "kernels/cuda/memory.h"
#include "kernels/harness/gpu_kernel.h"

namespace orrery::calibrate {

// Not thread safe. Without NVML rows have no clock and no power, and throttling is not seen.
class GpuTimer {
 public:
  GpuTimer();

  // Whether NVML knows the GPU.
  [[nodiscard]] bool has_board() const { return monitor_.board().has_value(); }
  // What the rows are measured with: device, driver, CUDA, revision (these must match in one
  // table), clocks, power limit, date.
  [[nodiscard]] std::vector<Fact> facts(const std::string& revision) const;

  // As TimePoint of schedule.h. A lack of memory and errors of kernel and libraries are refusals;
  // throws cuda::Error for all else, after which the device is of no use.
  std::vector<Row> time_point(const KernelOp& op, std::span<const State> states, bool power);

 private:
  // The fastest of up to three tries.
  Row measure_rested(KernelCase& kernel_case, const KernelOp& op, State state);
  Row measure_state(KernelCase& kernel_case, const KernelOp& op, State state);
  std::optional<Sustained> measure_power(KernelCase& kernel_case);

  Monitor monitor_;
  cuda::MemoryCache memory_;
};

}  // namespace orrery::calibrate
