#pragma once

// Ratio of measured time to work model between the rows of one family: log(time / work-model time)
// is interpolated linearly in the logarithms of the axes, one axis after the other, and never goes
// beyond the times at the two ends: where the ratio falls between two rows, a line of ratios would
// dip below both. A hole of the grid is filled first from the lines through it, each weighted by
// how well the same line would have predicted its neighbours; beyond what is measured also from the
// rows of more and of less work.

#include <array>
#include <optional>
#include <span>

#include "sim/cost/kernel_table.h"
#include "sim/cost/roofline.h"
#include "sim/machine/machine.h"

namespace orrery {

using GridPoint = std::array<double, kMaxAxes>;

struct Ratio {
  double log = 0;
  bool is_inside = true;  // bracketed by measurements on all sides
};

// Not thread safe; made for one call.
class Interpolator {
 public:
  // The work model has that peak and bandwidth.
  Interpolator(const KernelTable& table, FlopsPerSecond peak, BytesPerSecond bandwidth,
               DType dtype);

  // The call that it is made for: rows are compared with it where a dim does not change their time.
  void ask(std::span<const std::int64_t> dims);
  // Whether the work model is that of the kernel's launches (Prior::launch): among rows of one way,
  // since those of others have no such, unless it holds across ways.
  void model_launches(bool models) { models_launches_ = models || holds_across_ways(); }
  [[nodiscard]] bool models_launches() const { return models_launches_; }
  // Work-model time of a call, in seconds.
  double model_time(std::span<const std::int64_t> dims);
  // What a call takes at least, by the rows of its distribution: at the FLOP/s of the one with the
  // most, if these are as many as the work model counts on, and likewise at bytes/s. Rows that are
  // slower than that may all be too small to fill the GPU.
  Seconds at_fastest_row(int distribution, std::span<const std::int64_t> dims);

  // log(time / work-model time) of the family at `point`, clamped to the grid; of a scattered
  // layout between the nearest measured values of the first axis, each at the nearest measured ones
  // of the second. Such a point counts as inside up to twice beyond the second axis' ends.
  Ratio ratio_at(const FamilyGrid& grid, const GridPoint& point);

 private:
  using Node = std::array<int, kMaxAxes>;
  // A guess at a node from its own line along one axis; NaN where the line has no other node.
  struct LineGuess {
    double value = 0;
    bool is_bracketed = false;
    // Of a guess from one side: by how much the ratio would change on the way, if it went on as
    // between the last two nodes.
    double bend = 0;
    double octaves = 0;  // of a guess from one side: from the node that it is
  };
  // The nodes around a point, what it lies between them, and the point itself, clamped to the grid.
  struct Cell {
    Node low{};
    Node high{};
    GridPoint share{};
    GridPoint place{};
    bool is_inside = true;
  };

  [[nodiscard]] bool holds_across_ways() const {
    return table_.is_own() && prior_.launch_holds_across_ways;
  }
  Work work(std::span<const std::int64_t> dims);
  [[nodiscard]] double model_time_of(const Work& work) const;
  [[nodiscard]] double model_time_of_scratch() const;
  [[nodiscard]] Cell cell_of(const FamilyGrid& grid, const GridPoint& point) const;
  // Logarithm of the work-model time of a call of the family.
  double log_model(const FamilyGrid& grid, const GridPoint& point);
  // Logarithms of a ratio and of the work-model time that it is to.
  struct End {
    double ratio = 0;
    double model = 0;
  };
  static double between(const End& low, const End& high, double share, double model);
  // Between the nodes of the axes from `axis` on, at `place` along those before.
  Ratio within(const FamilyGrid& grid, const Cell& cell, int axis, Node& node, GridPoint& place);
  double node_ratio(const FamilyGrid& grid, const Node& node);
  // The ratio of a node that is measured; with `with_filled` also of one that lies between measured
  // nodes of a line of its own. Else NaN.
  double known_ratio(const FamilyGrid& grid, const Node& node, bool with_filled);
  // Whether a ratio that rises towards the end of a line is no less beyond it, and one that falls
  // no more: of attention, whose ratio follows its sizes. That of GEMMs follows how they are tiled,
  // that of kernels that take calls in ways follows these too.
  [[nodiscard]] bool bends_evenly() const {
    return prior_.arithmetic == Arithmetic::kAttention && !table_.has_ways();
  }
  double bend(const FamilyGrid& grid, const Node& node, int axis, int end, int step,
              bool with_filled);
  LineGuess along(const FamilyGrid& grid, const Node& node, int axis, bool with_filled = false);
  // Mean square error of `axis` lines at the neighbours of `node`.
  double line_variance(const FamilyGrid& grid, const Node& node, int axis);
  Ratio scattered_ratio(const FamilyGrid& grid, const GridPoint& point);
  // Between two nodes of the second axis' own value, which lie within a factor of 2 of each other
  // on the first: a call of all experts follows from calls of all experts, whose tiles are as full,
  // more than from as many rows of fewer. Empty where there are none.
  std::optional<Ratio> along_curve(const FamilyGrid& grid, const GridPoint& point);
  // Along the second axis, at a place of the first; empty when nothing is measured there.
  std::optional<Ratio> across(const FamilyGrid& grid, int first, double value);
  static double from_cuts(const FamilyGrid& grid, const Node& node);
  Ratio fill(const FamilyGrid& grid, const Node& node);
  // From the lines through a node that is not measured; empty when none has another node.
  std::optional<Ratio> from_lines(const FamilyGrid& grid, const Node& node, bool with_filled);
  double nearest(const FamilyGrid& grid, const Node& node);

  const KernelTable& table_;
  const Prior& prior_;
  DType dtype_;
  bool models_launches_;
  FlopsPerSecond peak_;
  BytesPerSecond bandwidth_;
  Dims scratch_;
  std::int64_t ignored_ = 1;  // of the call, the size of the dim that the grid ignores
};

}  // namespace orrery
