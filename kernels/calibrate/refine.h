#pragma once

// Where the next measurement lowers the interpolation's error most. No CUDA.
//
// The simulator interpolates log(time / work model) linearly in the logarithms of a kernel's axes
// (sim/cost/interpolate.h). On a line of measured points along one axis, each inner point tells
// how far the line between its neighbours misses it, hence the second derivative there; between two
// points h octaves apart the error at mid-point is about h^2 / 8 of that. At a step (a tile edge, a
// further wave) the estimate does not fall with h, so that after the smooth parts the steps are
// halved until both sides are measured.

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/harness/grid.h"
#include "kernels/kernel_spec.h"
#include "sim/machine/machine.h"
#include "sim/units/units.h"

namespace orrery::calibrate {

struct Candidate {
  KernelOp op;
  double error = 0;      // expected of log(time) if it is not measured
  double priority = 0;   // error, weighted by the length of the interval
  std::size_t axis = 0;  // the dim in whose middle it lies
};

// The points of one kernel. Not thread safe.
class Refiner {
 public:
  // `device` is the one that is measured. Grids must have passed coarse_points().
  Refiner(const KernelSpec& spec, std::span<const Grid> grids, const Device& device);

  void add(const KernelOp& op, Seconds time);
  void refuse(const KernelOp& op);  // never proposed again

  // At most `count` mid-points with an error expected of `least_error` or more, the highest
  // priority first; no two next to each other, so that the second may profit from the first.
  [[nodiscard]] std::vector<Candidate> next(int count, double least_error) const;

  // Dims between whose values the simulator interpolates this kernel.
  [[nodiscard]] bool is_axis(std::string_view dim) const;

 private:
  using Sizes = std::vector<std::int64_t>;
  struct Line;
  [[nodiscard]] std::vector<Line> lines() const;
  void propose(const Line& line, std::vector<Candidate>& found) const;
  [[nodiscard]] std::int64_t multiple(DType dtype, std::size_t dim) const;
  [[nodiscard]] bool is_allowed(const KernelOp& op) const;

  const KernelSpec& spec_;
  std::span<const Grid> grids_;
  const Device& device_;
  std::vector<bool> is_axis_;                            // per dim
  std::map<std::pair<DType, Sizes>, double> log_ratio_;  // measured points
  std::set<std::string> refused_;
};

}  // namespace orrery::calibrate
