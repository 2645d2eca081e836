// Calibration from end to end with a cost function in place of the GPU: refinement, budgets,
// resuming, the tables and their judgement by the simulator's own interpolation.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "kernels/calibrate/known_devices.h"
#include "kernels/calibrate/points.h"
#include "kernels/calibrate/progress_bar.h"
#include "kernels/calibrate/refine.h"
#include "kernels/calibrate/schedule.h"
#include "kernels/calibrate/tables.h"
#include "sim/cost/roofline.h"

namespace orrery::calibrate {
namespace {

namespace fs = std::filesystem;

const Device& h200() {
  static const Device device = known_device("NVIDIA H200");
  return device;
}

// A GPU whose residual_add has a step in tokens: beyond 1,000 it takes 1.5 times the work model.
Seconds stepped(const KernelOp& op) {
  const Seconds model = work_model_time(kernel_spec(op.kernel).prior, work_of(op),
                                        peak_flops(h200(), DType::kBf16), h200().hbm_bandwidth);
  return model * (dim(op.dims, "tokens") > 1000 ? 1.5 : 1.0);
}
// One whose efficiency bends smoothly in both dims.
Seconds smooth(const KernelOp& op) {
  const double x = std::log2(static_cast<double>(dim(op.dims, "tokens")));
  const double y = std::log2(static_cast<double>(dim(op.dims, "hidden")));
  return stepped(op) / (dim(op.dims, "tokens") > 1000 ? 1.5 : 1.0) *
         std::exp(0.02 * (x - 7) * (x - 7) + 0.01 * (y - 12) * (y - 12));
}

KernelGrids residual_add() {
  return {.spec = &kernel_spec("residual_add"),
          .grids = {{.axes = {{.dim = "tokens", .values = {1, 16, 256, 4096}},
                              {.dim = "hidden", .values = {2048, 8192}}}}}};
}

struct Killed {};

class ScheduleTest : public testing::Test {
 protected:
  ScheduleTest()
      : directory_(fs::temp_directory_path() /
                   ("orrery_schedule_" + std::to_string(::getpid()) + "_" +
                    testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::create_directories(directory_);
  }
  ~ScheduleTest() override { fs::remove_all(directory_); }

  static constexpr Seconds kCost{0.05};

  // Calibrates until the budget is spent; killed after `most` points.
  void calibrate(Seconds budget, Seconds (*cost)(const KernelOp&) = stepped, int most = 1 << 30,
                 double error = 0.01) {
    Journal journal(directory_ / "journal.txt", {{.name = "revision", .value = "abc"}}, false);
    const std::vector<KernelGrids> kernels = {residual_add()};
    int points = 0;
    measure_all(
        kernels, h200(), {.budget = budget, .error = error}, journal,
        [&](const KernelOp& op, std::span<const State> states, bool power) {
          if (points++ == most) throw Killed();
          std::vector<Row> rows;
          for (const State state : states) {
            ++measured_[key(op, state)];
            rows.push_back(
                {.op = op, .state = state, .time = cost(op), .samples = 5, .cost = kCost});
          }
          if (power) rows.front().sustained = {.power = Watts(500), .time = cost(op)};
          if (dim(op.dims, "tokens") == refused_tokens_) {
            for (Row& row : rows) row.refusal = "refused";
          }
          return rows;
        },
        [&](const Progress& progress) { last_ = progress; });
    write_tables(directory_, "h200-sxm", journal);
    num_rows_ = journal.rows().size();
  }

  [[nodiscard]] std::string file(const std::string& name) const {
    std::ifstream input(directory_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(input), {}};
  }

  [[nodiscard]] std::vector<Judged> judged(Seconds (*cost)(const KernelOp&)) const {
    std::vector<Row> rows;
    const KernelGrids kernel = residual_add();
    for (std::uint64_t i = 0; i < 300; ++i) {
      const KernelOp op =
          random_point(*kernel.spec, kernel.grids[0], [](std::string_view) { return true; }, i);
      rows.push_back({.op = op, .time = cost(op)});
    }
    return judge(directory_, h200(), rows);
  }

  fs::path directory_;
  std::map<std::string, int> measured_;
  std::int64_t refused_tokens_ = -1;
  Progress last_;
  std::size_t num_rows_ = 0;
};

TEST_F(ScheduleTest, RefinementFindsBothSidesOfAStep) {
  calibrate(Seconds(20));
  bool has_below = false;
  bool has_above = false;
  for (const auto& [text, count] : measured_) {
    has_below = has_below || text.find("tokens=1000 ") != std::string::npos;
    has_above = has_above || text.find("tokens=1001 ") != std::string::npos;
  }
  EXPECT_TRUE(has_below);
  EXPECT_TRUE(has_above);
}

TEST_F(ScheduleTest, NearlyNoPointGoesWhereTheInterpolationIsExact) {
  calibrate(Seconds(20));
  // Below 256 tokens the ratio is constant: the mid-points of [1, 16] and [16, 256] do not help.
  int wasted = 0;
  for (const auto& [text, count] : measured_) {
    const std::size_t at = text.find("tokens=") + 7;
    const int tokens = std::stoi(text.substr(at));
    wasted += tokens < 200 && tokens != 1 && tokens != 16 && text.ends_with("cold graph") ? 1 : 0;
  }
  EXPECT_LE(wasted, 2);
}

TEST_F(ScheduleTest, TheTableOfASmoothKernelMeetsTheTargetOfTheCheck) {
  calibrate(Seconds(20), smooth);
  const std::vector<ErrorSummary> summaries = summarise(judged(smooth));
  ASSERT_EQ(summaries.size(), 1u);
  EXPECT_EQ(summaries[0].points, 300);
  EXPECT_EQ(summaries[0].outside, 0);
  EXPECT_LT(summaries[0].median, 0.01);
  EXPECT_LT(summaries[0].p95, 0.03);
}

TEST_F(ScheduleTest, RefinementLowersTheHeldOutError) {
  calibrate(Seconds(8 * 3 * 0.05 + 0.01), smooth);  // the coarse points alone
  const double coarse = summarise(judged(smooth))[0].median;
  calibrate(Seconds(20), smooth, 1 << 30, 1e-4);
  EXPECT_LT(summarise(judged(smooth))[0].median, coarse / 4);
}

TEST_F(ScheduleTest, StopsWhenTheErrorExpectedIsSmallEnough) {
  calibrate(Seconds(1000), smooth, 1 << 30, 0.02);
  EXPECT_LT(last_.spent, Seconds(100));
  EXPECT_GT(last_.points, 8);
}

TEST_F(ScheduleTest, SpendsItsBudgetAndNotMore) {
  calibrate(Seconds(2));
  EXPECT_LE(last_.spent.value(), 2 + 3 * kCost.value());  // one point in three states
  EXPECT_GE(last_.spent.value(), 2 - 3 * kCost.value());
}

TEST_F(ScheduleTest, KilledAgainAndAgainItMeasuresNothingTwiceAndLosesNothing) {
  int kills = 0;
  while (true) {
    try {
      calibrate(Seconds(4), stepped, 3);
      break;
    } catch (const Killed&) {
      ++kills;
    }
  }
  EXPECT_GT(kills, 5);
  for (const auto& [text, count] : measured_) EXPECT_EQ(count, 1) << text;
  EXPECT_EQ(measured_.size(), num_rows_);
}

TEST_F(ScheduleTest, StartedAgainWhenDoneItMeasuresNothing) {
  calibrate(Seconds(4));
  const std::size_t before = measured_.size();
  calibrate(Seconds(4));
  EXPECT_EQ(measured_.size(), before);
}

TEST_F(ScheduleTest, ALargerBudgetGoesOnFromWhatIsThere) {
  calibrate(Seconds(1));
  const std::size_t before = measured_.size();
  calibrate(Seconds(2));
  EXPECT_GT(measured_.size(), before);
  for (const auto& [text, count] : measured_) EXPECT_EQ(count, 1) << text;
}

TEST_F(ScheduleTest, WhatTheKernelRefusesIsAskedOnceAndIsNoRow) {
  refused_tokens_ = 16;
  calibrate(Seconds(4));
  calibrate(Seconds(6));
  EXPECT_EQ(measured_.at("residual_add bf16 tokens=16 hidden=2048 cold graph"), 1);
  EXPECT_EQ(file("residual_add.csv").find("bf16,16,"), std::string::npos);
}

TEST_F(ScheduleTest, SomePointsAreTimedWarmEagerAndSustained) {
  calibrate(Seconds(20));
  const std::string rows = file("residual_add.csv");
  EXPECT_NE(rows.find(",warm,graph,"), std::string::npos);
  EXPECT_NE(rows.find(",cold,eager,"), std::string::npos);
  EXPECT_NE(rows.find(",500.0,"), std::string::npos);
  const std::string meta = file("meta.yaml");
  EXPECT_NE(meta.find("revision: \"abc\""), std::string::npos) << meta;
}

TEST_F(ScheduleTest, ATableThatIsWrongByATenthIsJudgedSo) {
  calibrate(Seconds(20), smooth);
  const auto slower = [](const KernelOp& op) { return smooth(op) / 1.1; };
  const std::vector<ErrorSummary> summaries = summarise(judged(slower));
  EXPECT_NEAR(summaries[0].median, 0.1, 0.02);
  EXPECT_NEAR(summaries[0].bias, 0.1, 0.02);
}

TEST(Summaries, ShapesBeyondTheTableStandApart) {
  const KernelOp op{.kernel = "gemm", .dims = {}};
  const auto off_by = [&](double error, bool is_inside) {
    return Judged{
        .op = op, .measured = Seconds(1), .predicted = Seconds(1 + error), .is_inside = is_inside};
  };
  const std::vector<Judged> judged = {off_by(0.01, true), off_by(-0.02, true), off_by(0.04, true),
                                      off_by(0.5, false)};
  const std::vector<ErrorSummary> summaries = summarise(judged);
  ASSERT_EQ(summaries.size(), 1u);
  EXPECT_EQ(summaries[0].points, 3);
  EXPECT_NEAR(summaries[0].median, 0.02, 1e-12);
  EXPECT_NEAR(summaries[0].p95, 0.04, 1e-12);
  EXPECT_NEAR(summaries[0].bias, 0.01, 1e-12);  // (0.01 - 0.02 + 0.04) / 3
  EXPECT_EQ(summaries[0].outside, 1);
  EXPECT_NEAR(summaries[0].outside_median, 0.5, 1e-12);
}

class RefinerTest : public testing::Test {
 protected:
  void add_all(const std::vector<KernelOp>& points) {
    for (const KernelOp& op : points) refiner_.add(op, smooth(op));
  }
  void add_coarse() {
    for (const CoarsePoint& point : coarse_points(*kernel_.spec, kernel_.grids[0])) {
      refiner_.add(point.op, smooth(point.op));
    }
  }
  KernelGrids kernel_ = residual_add();
  Refiner refiner_{*kernel_.spec, kernel_.grids, h200()};
};

TEST_F(RefinerTest, APlaneIsOneValueOfOneAxisWithAllValuesOfTheOther) {
  add_coarse();
  const Plane plane = refiner_.next(0.001);
  std::set<std::int64_t> tokens;
  std::set<std::int64_t> hidden;
  for (const KernelOp& op : plane.points) {
    tokens.insert(dim(op.dims, "tokens"));
    hidden.insert(dim(op.dims, "hidden"));
  }
  const bool is_row = tokens.size() == 1 && hidden.size() == 2;     // 2048, 8192
  const bool is_column = tokens.size() == 4 && hidden.size() == 1;  // 1, 16, 256, 4096
  EXPECT_TRUE(is_row || is_column) << tokens.size() << " x " << hidden.size();
  EXPECT_GT(plane.error, 0.001);
}

TEST_F(RefinerTest, WhatIsMissingOfAPlaneComesBeforeTheNext) {
  add_coarse();
  std::vector<KernelOp> plane = refiner_.next(0.001).points;
  ASSERT_GE(plane.size(), 2u);
  const KernelOp last = plane.back();
  plane.pop_back();
  add_all(plane);
  ASSERT_EQ(refiner_.next(0.001).points, std::vector{last});
  refiner_.refuse(last);
  for (const KernelOp& op : refiner_.next(0.001).points) EXPECT_NE(op, last);
}

TEST_F(RefinerTest, PointsThatTheGridRefusesAreNotProposed) {
  kernel_.grids[0].accept = [](const Dims& dims) { return dim(dims, "hidden") != 4096; };
  add_coarse();
  for (int i = 0; i < 20; ++i) {
    const Plane plane = refiner_.next(1e-4);
    for (const KernelOp& op : plane.points) ASSERT_NE(dim(op.dims, "hidden"), 4096);
    add_all(plane.points);
  }
}

TEST_F(RefinerTest, EndsWhenEveryIntervalIsGoodEnough) {
  add_coarse();
  int planes = 0;
  for (Plane plane = refiner_.next(0.01); !plane.points.empty(); plane = refiner_.next(0.01)) {
    add_all(plane.points);
    ASSERT_LT(++planes, 50);
  }
  EXPECT_GT(planes, 2);
}

TEST_F(RefinerTest, GridsOfOneKernelAreRefinedEachInItsOwnRange) {
  Grid small{.axes = {{.dim = "tokens", .values = {1, 4}}, {.dim = "hidden", .values = {64, 128}}}};
  kernel_.grids.push_back(small);
  Refiner refiner(*kernel_.spec, kernel_.grids, h200());
  for (const Grid& grid : kernel_.grids) {
    for (const CoarsePoint& point : coarse_points(*kernel_.spec, grid)) {
      refiner.add(point.op, smooth(point.op));
    }
  }
  for (int i = 0; i < 20; ++i) {
    const Plane plane = refiner.next(1e-4);
    for (const KernelOp& op : plane.points) {
      // Not the product of the values of both: hidden 128 to 2048 at 4096 tokens.
      ASSERT_TRUE(dim(op.dims, "hidden") >= 2048 || dim(op.dims, "tokens") <= 4) << op_text(op);
      refiner.add(op, smooth(op));
    }
  }
}

TEST(ProgressText, NamesKernelShareAndTimeLeft) {
  const Progress progress{.kernel = "gemm",
                          .points = 312,
                          .expected_error = 0.041,
                          .spent = Seconds(135),
                          .budget = Seconds(540)};
  EXPECT_EQ(progress_text(progress, 0),
            "gemm 312 rows, errors up to 4.1 %  25 %, at most 6:45 left");
  EXPECT_EQ(progress_text(progress, 4),
            "gemm 312 rows, errors up to 4.1 %  █░░░  25 %, at most 6:45 left");
}

}  // namespace
}  // namespace orrery::calibrate
