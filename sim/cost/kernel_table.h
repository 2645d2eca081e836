#pragma once

// Measured rows of one kernel, arranged for interpolation. Rows that agree in everything but up to
// three numeric dims (the axes) form a family; a family is a grid over its axes, with holes where
// nothing was measured. Immutable after construction, so safe to read from many threads.

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/kernel_spec.h"
#include "sim/plan/plan.h"
#include "sim/units/units.h"

namespace orrery {

inline constexpr int kMaxAxes = 3;
// Value of a `window` dim that means full attention; tables write it as 0.
inline constexpr std::int64_t kFullWindow = std::int64_t{1} << 30;

// Rows as read, in file order. Row i has its dims, in the order of the kernel's spec, at
// dims[i * num_dims].
struct KernelRows {
  const KernelSpec* spec = nullptr;
  int num_dims = 0;
  std::vector<std::string> distributions;  // names in the column `distribution`; empty without one
  std::vector<std::int64_t> dims;
  std::vector<double> time_s;
  std::vector<double> spread;  // interquartile range / median of the samples; 0: not known
  std::vector<DType> dtype;
  std::vector<std::uint8_t> distribution;  // index into distributions
  std::vector<std::uint8_t> host_bound;    // 1: the time is the host's and only bounds the kernel's
  std::vector<std::int64_t> source;  // of what kernel of the engine (backends.csv); -1: none said
  // What a call launched eagerly takes more than as a node of a graph: the median over calls of
  // less than kShortCall that were measured in both modes; 0 where none was.
  double eager_gap_s = 0;
  // Time where the operands are in the L2 cache over that where they are not, of calls that were
  // measured both ways; by the bytes that they move, ascending, the mean where several move as
  // many.
  std::vector<std::pair<double, double>> warm_ratio;
  bool is_own = false;  // of our own kernels, which take calls in ways (KernelSpec::way)

  [[nodiscard]] std::int64_t num_rows() const { return static_cast<std::int64_t>(time_s.size()); }
  [[nodiscard]] std::span<const std::int64_t> row_dims(std::int64_t row) const {
    return {dims.data() + row * num_dims, static_cast<std::size_t>(num_dims)};
  }
};

// In longer calls the gap is lost in the spread of both times.
inline constexpr double kShortCall = 50e-6;

// Reads <kernel>.csv. Of rows that name an L2 state (column l2) or a launch mode (column mode)
// those of a cold L2: in a graph the rows, eager the gap; those of a warm L2 in a graph make the
// ratio. Throws std::invalid_argument with file
// and line.
KernelRows read_kernel_rows(const std::filesystem::path& path);

// Which dims of a kernel are axes, in the order of the grid. `tied` names a dim that follows the
// last axis when both are equal (kv_heads of multi-head attention follows heads). A kernel that
// runs on one expert's rows takes as long whichever expert that is.
struct GridLayout {
  int num_axes = 0;
  std::array<int, kMaxAxes> axes{};  // indices into spec.dims
  int tied = -1;
  // Measured along curves rather than on a grid: rows of a call and what follows from them.
  bool is_scattered = false;
  // The second and third axis cut one layer, which tables do by the one or by the other.
  bool is_cut_twice = false;
  int ignored = -1;  // a dim that names something and does not change the time
};
GridLayout grid_layout(const KernelSpec& spec);

// One family: times over the outer product of its axes, first axis slowest.
struct FamilyGrid {
  std::vector<std::int64_t> dims;  // full dims of the family; axis entries are meaningless
  std::array<std::vector<std::int64_t>, kMaxAxes> axes;  // ascending; unused axes hold one 0
  std::vector<double> time_s;                            // NaN: not measured
  std::vector<double> spread;                            // of time_s
  bool is_tied = false;
  // Nodes whose row was host bound; empty when there are none. They are priced from `twin`, the
  // same family in fp8, times `twin_factor` (median ratio where both were measured).
  std::vector<bool> host_bound;
  const FamilyGrid* twin = nullptr;
  double twin_factor = 1;

  [[nodiscard]] std::size_t index(const std::array<int, kMaxAxes>& node) const {
    return (static_cast<std::size_t>(node[0]) * axes[1].size() + node[1]) * axes[2].size() +
           node[2];
  }
  // What rows say of any node, for more work takes no less: no longer than the shortest row of no
  // less work (infinity without one), no shorter than the longest of no more, each row being
  // counted as no longer than those of more work.
  std::vector<double> most_s;
  std::vector<double> least_s;

  void bound();  // sets these two; after the twin is linked
  // Whether a row stands alone: it takes more than twice as long as every next row of more work
  // along an axis, and more than twice what every next row of less work says in proportion. A timer
  // that was interrupted leaves such rows; where a kernel takes longer, the rows beside do too.
  // Own kernels are timed with their spread, and take calls in ways: of theirs none is set aside.
  [[nodiscard]] bool is_spike(std::size_t index) const;
  std::int64_t set_aside_spikes();  // how many; before twins are linked
  [[nodiscard]] double most(const std::array<int, kMaxAxes>& node) const {
    return most_s[index(node)];
  }
  [[nodiscard]] double least(const std::array<int, kMaxAxes>& node) const {
    return least_s[index(node)];
  }
  // NaN where nothing was measured.
  [[nodiscard]] double time_at(std::size_t index) const;
  [[nodiscard]] double time_of(const std::array<int, kMaxAxes>& node) const {
    return time_at(index(node));
  }
  [[nodiscard]] std::array<double, kMaxAxes> place_of(const std::array<int, kMaxAxes>& node) const;
};

class KernelTable {
 public:
  using Key = std::vector<std::int64_t>;  // dtype, distribution, family dims (axes as 0), way
  static constexpr int kAllWays = 0;

  // Arranges the rows for which `keep` is true (all without one). When several rows measure one
  // point, the fastest counts: an engine picks the faster kernel. Rows of own kernels that take
  // calls in ways also form a family for each way.
  explicit KernelTable(const KernelRows& rows,
                       const std::function<bool(std::int64_t)>& keep = nullptr);

  [[nodiscard]] const KernelSpec& spec() const { return *spec_; }
  [[nodiscard]] const GridLayout& layout() const { return layout_; }
  [[nodiscard]] const std::vector<std::string>& distributions() const { return distributions_; }
  [[nodiscard]] const std::map<Key, FamilyGrid>& families() const { return families_; }
  // The rows of a format and distribution that reach the most FLOP/s and the most bytes/s; null
  // without rows.
  struct TimedWork {
    Work work;
    Seconds time;
  };
  struct FastestRows {
    TimedWork computing;
    TimedWork moving;
  };
  [[nodiscard]] const FastestRows* fastest_rows(DType dtype, int distribution) const;
  // Rows that stand alone (FamilyGrid::set_aside_spikes), which no call is priced by.
  [[nodiscard]] std::int64_t num_spikes() const { return num_spikes_; }
  [[nodiscard]] Seconds eager_gap() const { return eager_gap_; }  // KernelRows::eager_gap_s
  // Of the time of the rows, what a call takes whose operands are in the L2 cache:
  // KernelRows::warm_ratio between the rows that have it, in log-bytes. 1 for kernels that read
  // weights or a cache, and where nothing was measured both ways.
  [[nodiscard]] double warm_ratio(Bytes moved) const;
  // Family of a call; null when there is none. dims in the order of the spec.
  [[nodiscard]] const FamilyGrid* family(DType dtype, int distribution,
                                         std::span<const std::int64_t> dims,
                                         int way = kAllWays) const;
  [[nodiscard]] Key key(DType dtype, int distribution, std::span<const std::int64_t> dims,
                        int way = kAllWays) const;
  // Whether they are of our own kernels, of which rows of each way make families of their own.
  [[nodiscard]] bool has_ways() const { return has_ways_; }
  // Whether the rows are of our own kernels, refined point by point.
  [[nodiscard]] bool is_own() const { return is_own_; }
  // Rows of calls during which the board came to its power limit are not among them.
  [[nodiscard]] bool leaves_out_long_calls() const { return leaves_out_long_calls_; }
  // kAllWays where the rows do not tell ways apart.
  [[nodiscard]] int way_of(DType dtype, std::span<const std::int64_t> dims) const {
    return has_ways_ ? spec_->way(dtype, dims) : kAllWays;
  }

 private:
  using Members = std::vector<std::pair<Key, std::vector<std::int64_t>>>;
  Members members(const KernelRows& rows, const std::function<bool(std::int64_t)>& keep) const;
  [[nodiscard]] FamilyGrid arranged(const KernelRows& rows, const Key& family_key,
                                    const std::vector<std::int64_t>& family_rows) const;
  void link_twins();
  void find_fastest_rows(const KernelRows& rows, const std::function<bool(std::int64_t)>& keep);

  const KernelSpec* spec_ = nullptr;
  GridLayout layout_;
  bool is_own_ = false;
  bool has_ways_ = false;
  bool leaves_out_long_calls_ = false;
  std::vector<std::string> distributions_;
  std::map<Key, FamilyGrid> families_;
  std::map<std::pair<DType, int>, FastestRows> fastest_rows_;  // by format and distribution
  std::int64_t num_spikes_ = 0;
  Seconds eager_gap_;
  std::vector<std::pair<double, double>> warm_ratio_;
};

}  // namespace orrery
