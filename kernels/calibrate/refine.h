#pragma once

// Which measurements lower the interpolation's error most. No CUDA.
//
// The simulator interpolates log(time / work model) linearly in the logarithms of a kernel's axes
// (sim/cost/interpolate.h) between the values that were measured. On a line of measured points
// along one axis, each inner point tells how far the line between its neighbours misses it, hence
// the second derivative there; between two points h octaves apart the error at mid-point is h^2 / 8
// of that. Averaged over all lines along an axis this says which interval is worst; its mid-point
// becomes a further value of the axis and is measured at all values of the others:
//
//     n ^  x   x   +   x        x measured, + the new plane at a value of m
//       |  x   x   +   x        A tile edge lies at the same m for all n and k, and where single
//       +--x---x---+---x---> m  points were added instead, most of the grid would be holes.
//
// At a step the estimate does not fall with h, so that it is halved until both sides are measured.

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

// Points to measure together.
struct Plane {
  std::vector<KernelOp> points;
  double error = 0;  // mean of log(time) expected between the measured points if it is left out
};

// The points of one kernel. Not thread safe.
class Refiner {
 public:
  // `device` is the one that is measured. Grids must have passed coarse_points(); they and the spec
  // must outlive the refiner.
  Refiner(const KernelSpec& spec, std::span<const Grid> grids, const Device& device);

  void add(const KernelOp& op, Seconds time);
  void refuse(const KernelOp& op);  // never proposed again

  // What is missing at the values that the axes have; if nothing is, the plane that gains most for
  // its number of points; no points when every interval is expected to err by less than
  // `least_error`.
  [[nodiscard]] Plane next(double least_error) const;

  // Dims between whose values the simulator interpolates this kernel.
  [[nodiscard]] bool is_axis(std::string_view dim) const;

 private:
  using Sizes = std::vector<std::int64_t>;  // in the order of the spec
  // Points of one grid that differ in axes only.
  struct Family {
    const Grid* grid = nullptr;
    Sizes dims;                                  // of its first point
    std::vector<std::set<std::int64_t>> values;  // per dim; measured or refused
    std::map<Sizes, double> log_ratio;           // measured
  };
  void insert(const KernelOp& op, const double* log_ratio);
  [[nodiscard]] Sizes sizes_of(const KernelOp& op) const;
  [[nodiscard]] KernelOp op_of(const Family& family, const Sizes& sizes) const;
  // Points of the product of `values` that are neither measured nor refused.
  [[nodiscard]] std::vector<KernelOp> missing(
      const Family& family, const std::vector<std::set<std::int64_t>>& values) const;
  [[nodiscard]] double expected_error(const Family& family, std::size_t axis, std::int64_t low,
                                      std::int64_t middle, std::int64_t high) const;

  const KernelSpec& spec_;
  std::span<const Grid> grids_;
  const Device& device_;
  std::vector<bool> is_axis_;  // per dim
  std::map<std::pair<const Grid*, Sizes>, Family> families_;
  std::set<std::string> refused_;
};

}  // namespace orrery::calibrate
