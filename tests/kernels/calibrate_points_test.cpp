#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "kernels/calibrate/points.h"
#include "kernels/calibrate/row.h"

namespace orrery::calibrate {
namespace {

const KernelSpec& gemm() { return kernel_spec("gemm"); }

Grid gemm_grid() {
  return {.axes = {{.dim = "k", .values = {512, 1024, 2048}},
                   {.dim = "m", .values = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512}},
                   {.dim = "n", .values = {1024, 4096}}}};
}

TEST(CalibrationPoints, AMidpointIsTheGeometricMean) {
  EXPECT_EQ(midpoint(1, 100, 1), 10);  // sqrt(1 * 100)
  EXPECT_EQ(midpoint(1024, 4096, 64), 2048);
  EXPECT_EQ(midpoint(2048, 4096, 64), 2880);  // 2896.3 is 45.25 times 64
}

TEST(CalibrationPoints, AMidpointLiesStrictlyBetweenAndOnTheMultiple) {
  for (std::int64_t low = 1; low < 80; ++low) {
    for (std::int64_t high = low + 1; high < 200; ++high) {
      for (const std::int64_t multiple : {1, 2, 8, 64}) {
        const auto middle = midpoint(low, high, multiple);
        bool exists = false;
        for (std::int64_t value = low + 1; value < high; ++value) {
          exists = exists || value % multiple == 0;
        }
        ASSERT_EQ(middle.has_value(), exists) << low << " " << high << " " << multiple;
        if (!middle) continue;
        ASSERT_GT(*middle, low);
        ASSERT_LT(*middle, high);
        ASSERT_EQ(*middle % multiple, 0);
      }
    }
  }
}

TEST(CalibrationPoints, HalvingEndsOnBothSidesOfAStep) {
  // A step between 128 and 129: halving the interval that holds it must reach [128, 129].
  std::int64_t low = 64;
  std::int64_t high = 256;
  while (const auto middle = midpoint(low, high, 1)) (*middle <= 128 ? low : high) = *middle;
  EXPECT_EQ(low, 128);
  EXPECT_EQ(high, 129);
}

TEST(CalibrationPoints, MultiplesFollowTheValuesUpTo128) {
  EXPECT_EQ(multiple_of({.dim = "n", .values = {1024, 4096}}), 128);
  EXPECT_EQ(multiple_of({.dim = "heads", .values = {8, 24}}), 8);
  EXPECT_EQ(multiple_of({.dim = "m", .values = {1, 64}}), 1);
  EXPECT_EQ(multiple_of({.dim = "query", .values = {0, 64}}), 64);
  EXPECT_EQ(multiple_of({.dim = "n", .values = {1024, 4096}, .multiple = 16}), 16);
}

TEST(CalibrationPoints, ThinningKeepsBothEnds) {
  const std::vector<std::int64_t> values = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(thinned(values, 0), values);
  EXPECT_EQ(thinned(values, 1), (std::vector<std::int64_t>{1, 3, 5, 6}));
  EXPECT_EQ(thinned(values, 3), (std::vector<std::int64_t>{1, 6}));
}

TEST(CalibrationPoints, CoarsePointsAreTheProductOnceEachInTheOrderOfTheSpec) {
  const std::vector<CoarsePoint> points = coarse_points(gemm(), gemm_grid());
  std::set<std::string> all;
  for (const CoarsePoint& point : points) {
    EXPECT_EQ(point.op.dims[0].name, "m");
    EXPECT_EQ(point.op.dims[2].name, "k");
    all.insert(op_text(point.op));
  }
  EXPECT_EQ(points.size(), 60u);  // 3 * 10 * 2
  EXPECT_EQ(all.size(), 60u);
}

TEST(CalibrationPoints, TheFirstCoarsePointsSpanTheWholeRange) {
  const std::vector<CoarsePoint> points = coarse_points(gemm(), gemm_grid());
  EXPECT_TRUE(std::ranges::is_sorted(points, std::greater{}, &CoarsePoint::level));
  // Level 3 keeps m = 1, 256, 512 and both ends of n and k: 3 * 2 * 2 points.
  EXPECT_EQ(std::ranges::count(points, kMaxLevel, &CoarsePoint::level), 12);
  std::set<std::int64_t> m;
  for (int i = 0; i < 12; ++i) m.insert(dim(points[i].op.dims, "m"));
  EXPECT_EQ(m, (std::set<std::int64_t>{1, 256, 512}));
}

TEST(CalibrationPoints, ScatteringKeepsEveryPointAndSpreadsAnyBeginning) {
  for (const int count : {0, 1, 2, 3, 10, 64, 100, 101}) {
    std::vector<int> points(static_cast<std::size_t>(count));
    std::iota(points.begin(), points.end(), 0);
    scatter(std::span(points));
    // Of the first quarter some lie in each third of the original order.
    std::set<int> thirds;
    for (int i = 0; i < (count + 3) / 4; ++i) thirds.insert(3 * points[i] / count);
    if (count >= 10) {
      EXPECT_EQ(thirds.size(), 3u) << count;
    }
    std::ranges::sort(points);
    for (int i = 0; i < count; ++i) ASSERT_EQ(points[i], i) << count;
  }
}

TEST(CalibrationPoints, PointsThatTheGridRefusesAreLeftOut) {
  Grid grid = gemm_grid();
  grid.accept = [](const Dims& dims) { return dim(dims, "m") <= 2; };
  EXPECT_EQ(coarse_points(gemm(), grid).size(), 12u);  // 2 * 3 * 2
}

TEST(CalibrationPoints, AGridThatDoesNotFitItsSpecIsAnError) {
  Grid grid = gemm_grid();
  grid.axes.pop_back();
  EXPECT_THROW(coarse_points(gemm(), grid), std::invalid_argument);
  grid = gemm_grid();
  grid.axes[0].dim = "hidden";
  EXPECT_THROW(coarse_points(gemm(), grid), std::invalid_argument);
  grid = gemm_grid();
  grid.axes[1].values = {1, 4, 2};
  EXPECT_THROW(coarse_points(gemm(), grid), std::invalid_argument);
}

TEST(CalibrationPoints, RandomPointsLieInsideTheGridOnTheirMultiplesAndSpread) {
  const Grid grid = gemm_grid();
  std::set<std::int64_t> m;
  int below_middle = 0;
  constexpr int kDraws = 400;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const KernelOp op =
        random_point(gemm(), grid, [](std::string_view name) { return name != "k"; }, i);
    const std::int64_t n = dim(op.dims, "n");
    m.insert(dim(op.dims, "m"));
    EXPECT_GE(dim(op.dims, "m"), 1);
    EXPECT_LE(dim(op.dims, "m"), 512);
    EXPECT_GE(n, 1024);
    EXPECT_LE(n, 4096);
    EXPECT_EQ(n % 128, 0);
    EXPECT_TRUE(std::ranges::count(grid.axes[0].values, dim(op.dims, "k")) == 1) << "no axis";
    below_middle += n < 2048 ? 1 : 0;
    EXPECT_EQ(op, random_point(gemm(), grid, [](std::string_view name) { return name != "k"; }, i));
  }
  EXPECT_GT(m.size(), 80u);
  // Log-uniform: n is below the geometric mean half the time; 6 deviations of sqrt(400) / 2 = 10.
  EXPECT_NEAR(below_middle, kDraws / 2.0, 60);
}

}  // namespace
}  // namespace orrery::calibrate
