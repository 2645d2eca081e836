// More work is never faster, but where rows say so: kernels have tiles and ways, and 17 rows of a
// GEMM may take longer than 48. Between rows nothing falls by more than the rows around do.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "kernels/launch_gpu.h"
#include "sim/cost/cost.h"
#include "sim/cost/interpolate.h"
#include "sim/cost/provider_tables.h"
#include "sim/cost/roofline.h"
#include "tests/cost/cost_testing.h"

namespace orrery {
namespace {

using testing::h200;
using testing::TableDirectory;
using Node = std::array<int, kMaxAxes>;
using Place = std::array<std::int64_t, kMaxAxes>;

// Repeated measurements of one call differ by 1 % (Basis::kMeasured's spread), so may two rows.
constexpr double kNoise = 1.02;

// The nodes of an axis next to a value on both sides; the last one twice beyond the ends.
std::array<int, 2> around(const std::vector<std::int64_t>& axis, std::int64_t value) {
  const auto above = static_cast<int>(std::ranges::lower_bound(axis, value) - axis.begin());
  if (above == static_cast<int>(axis.size())) return {above - 1, above - 1};
  return {axis[above] == value || above == 0 ? above : above - 1, above};
}

// How much faster a larger call along `axis` is than a smaller one, at most, among the rows on the
// lines around `place`, from the last before it to the first from `larger` on; 1: none is.
double fall_of_rows(const FamilyGrid& grid, const Place& place, int axis, std::int64_t larger) {
  const int first = (axis + 1) % kMaxAxes;
  const int second = (axis + 2) % kMaxAxes;
  const std::vector<std::int64_t>& values = grid.axes[axis];
  double worst = 1;
  for (const int i : around(grid.axes[first], place[first])) {
    for (const int j : around(grid.axes[second], place[second])) {
      Node node{};
      node[first] = i;
      node[second] = j;
      double longest = 0;
      for (std::size_t at = 0; at < values.size(); ++at) {
        node[axis] = static_cast<int>(at);
        const double time = grid.time_of(node);
        if (std::isnan(time)) continue;
        longest = values[at] <= place[axis] ? time : std::max(longest, time);
        worst = std::max(worst, longest / time);
        if (values[at] >= larger) break;
      }
    }
  }
  return worst;
}

struct Call {
  const KernelTable::Key* key = nullptr;
  const FamilyGrid* grid = nullptr;
  Place place{};
  int axis = 0;
  std::int64_t larger = 0;
};

class Draw {
 public:
  explicit Draw(const KernelTable& table) : table_(table) {
    for (const auto& [key, grid] : table.families()) {
      if (key.back() == KernelTable::kAllWays) families_.emplace_back(&key, &grid);
    }
  }

  // From a row on, along one axis and perhaps along another, to somewhere before the next rows.
  Call call() {
    while (true) {
      const auto& [key, grid] = families_[below(families_.size())];
      const std::size_t at = below(grid->time_s.size());
      if (std::isnan(grid->time_at(at))) continue;
      Node node{};
      Call call{.key = key, .grid = grid};
      std::size_t rest = at;
      for (int a = kMaxAxes - 1; a >= 0; --a) {
        node[a] = static_cast<int>(rest % grid->axes[a].size());
        rest /= grid->axes[a].size();
        call.place[a] = grid->axes[a][node[a]];
      }
      call.axis = static_cast<int>(below(table_.layout().num_axes));
      const auto other = static_cast<int>(below(table_.layout().num_axes));
      if (other != call.axis) {
        call.place[other] = between(call.place[other], next(*grid, node, other));
      }
      const std::int64_t end = next(*grid, node, call.axis);
      call.place[call.axis] = between(call.place[call.axis], end);
      call.larger = between(call.place[call.axis], end);
      if (call.larger > call.place[call.axis] && !is_heads_of_groups(call)) return call;
    }
  }

 private:
  std::size_t below(std::size_t limit) { return random_() % limit; }
  // Evenly in the logarithm.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    const double share = static_cast<double>(below(1001)) / 1000;
    const double ratio =
        static_cast<double>(high) / static_cast<double>(std::max<std::int64_t>(low, 1));
    return std::llround(static_cast<double>(low) * std::pow(ratio, share));
  }
  // The place of the next row on the line, its own without one.
  static std::int64_t next(const FamilyGrid& grid, Node node, int axis) {
    const std::int64_t own = grid.axes[axis][node[axis]];
    while (++node[axis] < static_cast<int>(grid.axes[axis].size())) {
      if (!std::isnan(grid.time_of(node))) return grid.axes[axis][node[axis]];
    }
    return own;
  }
  // Heads are whole multiples of kv_heads, so few of them are calls.
  [[nodiscard]] bool is_heads_of_groups(const Call& call) const {
    return table_.layout().tied >= 0 && call.axis == table_.layout().num_axes - 1;
  }

  const KernelTable& table_;
  std::vector<std::pair<const KernelTable::Key*, const FamilyGrid*>> families_;
  std::mt19937_64 random_{7};
};

std::vector<std::int64_t> dims_of(const KernelTable& table, const Call& call, std::int64_t size) {
  std::vector<std::int64_t> dims = call.grid->dims;
  const GridLayout& layout = table.layout();
  if (layout.ignored >= 0) dims[layout.ignored] = 1;
  for (int a = 0; a < layout.num_axes; ++a) {
    dims[layout.axes[a]] = a == call.axis ? size : call.place[a];
  }
  if (call.grid->is_tied) dims[layout.tied] = dims[layout.axes[layout.num_axes - 1]];
  return dims;
}

struct Falls {
  int num_calls = 0;
  int num = 0;
  double worst = 1;
  std::string example;
};

// By how much a launch of our own is said to fall: blocks that end within a row and go on with
// another take longer with less to do, as do the tiles of three groups beside those of four.
double fall_of_launch(const KernelTable& table, const Call& call) {
  const KernelSpec& spec = table.spec();
  if (!table.is_own() || spec.prior.launch == nullptr) return 1;
  const Device device = h200();
  const auto dtype = static_cast<DType>((*call.key)[0]);
  const auto time = [&](std::int64_t size) {
    KernelOp op{.kernel = std::string(spec.name), .dtype = dtype, .dims = {}};
    const std::vector<std::int64_t> sizes = dims_of(table, call, size);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      op.dims.push_back({.name = std::string(spec.dims[i].name), .size = sizes[i], .axis = {}});
    }
    return work_model_time(spec.prior, work_of(op),
                           peak_flops(device, arithmetic_dtype(spec, dtype)), device.hbm_bandwidth,
                           spec.prior.launch(dtype, op.dims, launch::kNumSms));
  };
  return std::max(1.0, time(call.place[call.axis]) / time(call.larger));
}

// Calls of a kernel that fall more than the rows around them.
Falls falls_of(const KernelTable& table, int num_calls) {
  const Device device = h200();
  Draw draw(table);
  Falls falls;
  falls.num_calls = num_calls;
  for (int i = 0; i < num_calls; ++i) {
    const Call call = draw.call();
    const auto time = [&](std::int64_t size) {
      const auto found = predict(table, device, device, static_cast<DType>((*call.key)[0]),
                                 static_cast<int>((*call.key)[1]), dims_of(table, call, size));
      return std::max(found->time, found->at_fastest_row);  // correction "fastest row"
    };
    const Seconds smaller = time(call.place[call.axis]);
    const Seconds larger = time(call.larger);
    const double fall = smaller / larger /
                        fall_of_rows(*call.grid, call.place, call.axis, call.larger) /
                        fall_of_launch(table, call);
    if (fall <= kNoise) continue;
    ++falls.num;
    if (fall > falls.worst) {
      falls.worst = fall;
      falls.example = std::string(table.spec().name) + " " +
                      std::string(to_text(static_cast<DType>((*call.key)[0])));
      const std::vector<std::int64_t> dims = dims_of(table, call, call.place[call.axis]);
      for (std::size_t d = 0; d < dims.size(); ++d) {
        falls.example +=
            " " + std::string(table.spec().dims[d].name) + "=" + std::to_string(dims[d]);
      }
      falls.example += " to " + std::to_string(call.larger) + ": " +
                       std::to_string(smaller.value() * 1e6) + " to " +
                       std::to_string(larger.value() * 1e6) + " us";
    }
  }
  return falls;
}

class MoreWorkOf : public ::testing::TestWithParam<const char*> {};

TEST_P(MoreWorkOf, IsNoFasterBetweenRowsThanTheRowsAroundSay) {
  const Provider provider =
      Provider::load(std::filesystem::path(ORRERY_SOURCE_DIR) / "topologies/devices" / GetParam());
  for (const std::string& kernel : provider.kernels()) {
    const Falls falls = falls_of(*provider.tables().table(kernel), 3000);
    EXPECT_EQ(falls.num, 0) << falls.example << ", seed 7";
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, MoreWorkOf,
                         ::testing::Values("h200-sxm/vllm-0.24.0", "h200-sxm/trtllm-1.3.0rc20",
                                           "h200-sxm/sglang-0.5.14", "h100-sxm/vllm-0.24.0",
                                           "h100-sxm/sglang-0.5.10-deepep-normal",
                                           "h100-sxm/sglang-0.5.10-deepep-low-latency"));

TEST(MoreWork, IsSeldomFasterBetweenTheScatteredRowsOfOwnKernels) {
  // Refined point by point, so most nodes of a grid are holes; and calls change ways between rows
  // of other lines. Filling is chosen for its error on held-out rows, not for this.
  constexpr double kSeldom = 0.025;
  const Provider provider = Provider::load(std::filesystem::path(ORRERY_SOURCE_DIR) /
                                           "topologies/devices/h200-sxm/orrery");
  for (const std::string& kernel : provider.kernels()) {
    const Falls falls = falls_of(*provider.tables().table(kernel), 3000);
    EXPECT_LE(falls.num, kSeldom * falls.num_calls) << falls.example << ", seed 7";
  }
}

TEST(MoreWork, DoesNotDipBetweenTwoRows) {
  // Rows of 2 and 5 times the work model: at 16 columns it is all floor, at 4,096 all work, so in
  // the middle a line of ratios has most of the fall behind it and little of the work.
  const TableDirectory directory;
  const auto row = [](std::int64_t m, double time_us) {
    return "bf16," + std::to_string(m) + ",64,64," + std::to_string(time_us) + "\n";
  };
  directory.write("gemm.csv", "dtype,m,n,k,time_us\n" + row(16, 20) + row(65536, 21));
  const Provider provider = Provider::load(directory.path());
  const CostModel model(testing::node(), &provider, nullptr, {});
  Seconds before(20e-6);
  for (std::int64_t m = 32; m < 65536; m *= 2) {
    const Seconds time = model.kernel(testing::gemm(m, 64, 64)).time;
    EXPECT_GE(time, before * (1 - 1e-9)) << m;
    before = time;
  }
  EXPECT_LE(before, Seconds(21e-6) * (1 + 1e-9));
}

TEST(FasterDevice, IsNeverSlowerWithRowsOfAnother) {
  const Device measured_on = h200();
  for (const char* tables : {"h200-sxm/vllm-0.24.0", "h200-sxm/trtllm-1.3.0rc20",
                             "h200-sxm/sglang-0.5.14", "h200-sxm/orrery"}) {
    const Provider provider =
        Provider::load(std::filesystem::path(ORRERY_SOURCE_DIR) / "topologies/devices" / tables);
    const auto on = [&](double flops, double bandwidth) {
      MachineSpec spec = testing::node_spec();
      spec.device = measured_on;
      for (auto& [dtype, peak] : spec.device.dense_flops) peak = peak * flops;
      spec.device.hbm_bandwidth = spec.device.hbm_bandwidth * bandwidth;
      return make_machine(spec);
    };
    const std::array machines = {on(1, 1), on(2, 1), on(1, 2), on(2, 2)};
    std::vector<CostModel> models;
    for (const Machine& machine : machines) {
      models.push_back(
          {machine,
           {{.provider = &provider, .device = &measured_on, .origin = Origin::kSibling}},
           {},
           {}});
    }
    for (const std::string& kernel : provider.kernels()) {
      const KernelTable& table = *provider.tables().table(kernel);
      Draw draw(table);
      for (int i = 0; i < 200; ++i) {
        const Call call = draw.call();
        KernelOp op{.kernel = kernel, .dtype = static_cast<DType>((*call.key)[0]), .dims = {}};
        const std::vector<std::int64_t> dims = dims_of(table, call, call.larger);
        for (std::size_t d = 0; d < dims.size(); ++d) {
          op.dims.push_back(
              {.name = std::string(table.spec().dims[d].name), .size = dims[d], .axis = {}});
        }
        const Seconds slow = models[0].kernel(op).time;
        for (std::size_t fast = 1; fast < models.size(); ++fast) {
          EXPECT_LE(models[fast].kernel(op).time, slow * (1 + 1e-9))
              << tables << " " << kernel << " device " << fast << ", seed 7";
        }
      }
    }
  }
}

}  // namespace
}  // namespace orrery
