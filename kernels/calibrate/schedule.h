#pragma once

// The order in which calibration measures, against a budget of time: per kernel the coarse points
// from the ends of the range inwards, then refinement until the kernel's share is spent. What a
// point costs is read from its row, so a calibration that was killed goes on with what it has left.
// No CUDA: what times a point is passed in.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/calibrate/journal.h"
#include "kernels/calibrate/row.h"
#include "kernels/harness/grid.h"
#include "kernels/kernel_spec.h"
#include "sim/machine/machine.h"

namespace orrery::calibrate {

struct KernelGrids {
  const KernelSpec* spec = nullptr;
  std::vector<Grid> grids;
};

struct ScheduleOptions {
  Seconds budget{540};
  // Errors expected below this are not worth a point.
  double error = 0.005;
};

// Times one call in each of the states, of them the first also sustained, with one set-up; a row
// per state. A call that cannot be measured has a row with a refusal for each.
using TimePoint =
    std::function<std::vector<Row>(const KernelOp& op, std::span<const State> states, bool power)>;

struct Progress {
  std::string kernel;
  int points = 0;             // of this kernel, all states
  double expected_error = 0;  // greatest of the intervals left; 0 while the grid is coarse
  Seconds spent;              // of all kernels asked for
  Seconds budget;
};
using Report = std::function<void(const Progress& progress)>;

// Measures what `journal` does not hold yet. Throws what time_point throws, std::invalid_argument
// for a grid that does not fit its spec.
void measure_all(std::span<const KernelGrids> kernels, const Device& device,
                 const ScheduleOptions& options, Journal& journal, const TimePoint& time_point,
                 const Report& report);

}  // namespace orrery::calibrate
