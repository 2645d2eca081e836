// Experts of a shape that no row is of: whole shapes left out of the shipped tables.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <vector>

#include "sim/cost/interpolate.h"
#include "sim/cost/kernel_table.h"
#include "tests/cost/cost_testing.h"

namespace orrery {
namespace {

using Shape = std::array<std::int64_t, 3>;  // hidden, top-k, experts

KernelRows rows_of(const std::string& tables) {
  return read_kernel_rows(std::filesystem::path(ORRERY_SOURCE_DIR) / "topologies/devices" / tables /
                          "moe.csv");
}

int dim_of(const KernelRows& rows, std::string_view name) {
  return static_cast<int>(std::ranges::find(rows.spec->dims, name, &DimSpec::name) -
                          rows.spec->dims.begin());
}

Shape shape_of(const KernelRows& rows, std::int64_t row) {
  const auto dims = rows.row_dims(row);
  return {dims[dim_of(rows, "hidden")], dims[dim_of(rows, "topk")],
          dims[dim_of(rows, "experts_total")]};
}

struct Tables {
  const char* tables;
  double median;  // of |ln(price / row)|
  double nine_in_ten;
};

class UnseenShapesOf : public ::testing::TestWithParam<Tables> {};

// Limits are docs/data.md's figures with a tenth of slack.
TEST_P(UnseenShapesOf, ArePricedAsTheirRowsSay) {
  constexpr int kCalls = 150;  // of a shape
  const KernelRows rows = rows_of(GetParam().tables);
  const Device device = testing::h200();
  std::map<Shape, std::vector<std::int64_t>> shapes;
  for (std::int64_t row = 0; row < rows.num_rows(); ++row)
    shapes[shape_of(rows, row)].push_back(row);
  std::mt19937_64 random(1);
  std::vector<double> errors;
  for (const auto& [shape, own] : shapes) {
    const KernelTable others(rows, [&](std::int64_t row) { return shape_of(rows, row) != shape; });
    for (int i = 0; i < kCalls; ++i) {
      const std::int64_t row = own[random() % own.size()];
      const auto found = predict(others, device, device, rows.dtype[row], rows.distribution[row],
                                 rows.row_dims(row));
      if (found) errors.push_back(std::abs(std::log(found->time.value() / rows.time_s[row])));
    }
  }
  ASSERT_GT(errors.size(), 2000U);
  std::ranges::sort(errors);
  EXPECT_LE(errors[errors.size() / 2], 1.1 * GetParam().median);
  EXPECT_LE(errors[errors.size() * 9 / 10], 1.1 * GetParam().nine_in_ten);
}

INSTANTIATE_TEST_SUITE_P(Engines, UnseenShapesOf,
                         ::testing::Values(Tables{"h200-sxm/vllm-0.24.0", 0.085, 0.386},
                                           Tables{"h200-sxm/trtllm-1.3.0rc20", 0.059, 0.441},
                                           Tables{"h200-sxm/sglang-0.5.14", 0.077, 0.384},
                                           Tables{"h100-sxm/vllm-0.24.0", 0.076, 0.380}));

// Step-3 has 3 of 48 experts, Qwen2-57B 8 of 64: neither is in the tables.
TEST(UnseenShapes, TakeLongerWithMoreTokens) {
  const KernelRows rows = rows_of("h200-sxm/vllm-0.24.0");
  const KernelTable table(rows, [](std::int64_t) { return true; });
  const Device device = testing::h200();
  for (const auto& [hidden, inter, topk, experts] :
       {std::array<std::int64_t, 4>{7168, 5120, 3, 48}, {3584, 2560, 8, 64}}) {
    for (const std::int64_t share : {1, 2, 8}) {
      const auto skewed = std::ranges::find(rows.distributions, "power_law_1.01");
      const auto load = static_cast<int>(skewed - rows.distributions.begin());
      double longest = 0;
      for (std::int64_t tokens = 256; tokens <= 65536; tokens += tokens / 4) {
        const std::array dims = {tokens, hidden, inter, topk, experts / share, experts};
        const double time = predict(table, device, device, DType::kBf16, load, dims)->time.value();
        EXPECT_GT(time, 0.95 * longest)
            << experts << " experts over " << share << " ranks, " << tokens;
        longest = std::max(longest, time);
      }
    }
  }
}

}  // namespace
}  // namespace orrery
