// Rows of tables that stand alone: an interrupted timer, not a kernel.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "sim/cost/cost.h"
#include "sim/cost/provider_tables.h"
#include "tests/cost/cost_testing.h"

namespace orrery {
namespace {

using testing::gemm;
using testing::TableDirectory;

const std::filesystem::path kDevices =
    std::filesystem::path(ORRERY_SOURCE_DIR) / "topologies/devices";

// Times of m by n, k 4,096, in us.
std::string table(const std::vector<std::vector<double>>& times) {
  std::string text = "dtype,m,n,k,time_us\n";
  std::int64_t m = 64;
  for (const std::vector<double>& line : times) {
    std::int64_t n = 1024;
    for (const double time : line) {
      text += "bf16," + std::to_string(m) + "," + std::to_string(n) + ",4096," +
              std::to_string(time) + "\n";
      n *= 2;
    }
    m *= 2;
  }
  return text;
}

Estimate price(const TableDirectory& directory, std::int64_t m, std::int64_t n) {
  const Provider provider = Provider::load(directory.path());
  return CostModel(testing::node(), &provider, nullptr, {}).kernel(gemm(m, n, 4096));
}

TEST(Spikes, ARowThatStandsAloneIsNoPrice) {
  const TableDirectory directory;
  directory.write("gemm.csv", table({{10, 12, 16}, {11, 1300, 18}, {13, 16, 24}}));
  const Estimate spike = price(directory, 128, 2048);
  EXPECT_EQ(spike.basis, Basis::kInterpolated);
  EXPECT_GE(spike.time, Seconds(12e-6));
  EXPECT_LE(spike.time, Seconds(18e-6));
  EXPECT_DOUBLE_EQ(price(directory, 64, 2048).time.value(), 12e-6);
  EXPECT_EQ(Provider::load(directory.path()).tables().table("gemm")->num_spikes(), 1);
}

// Also at an edge, where fewer rows say so.
TEST(Spikes, ARowMayStandAloneAtTheEdge) {
  const TableDirectory directory;
  directory.write("gemm.csv", table({{1000, 12, 16}, {11, 13, 18}, {13, 16, 24}}));
  EXPECT_LE(price(directory, 64, 1024).time, Seconds(12e-6));
}

// Experts of 96 tokens at 341 and 1,225 us, where those of 80 and 128 take 70 and 130.
TEST(Spikes, OneRowMayHideAnother) {
  const TableDirectory directory;
  directory.write("gemm.csv", table({{10, 18, 32}, {120, 400, 34}, {12, 20, 36}}));
  EXPECT_LE(price(directory, 128, 1024).time, Seconds(13e-6));
  EXPECT_LE(price(directory, 128, 2048).time, Seconds(21e-6));
  EXPECT_EQ(Provider::load(directory.path()).tables().table("gemm")->num_spikes(), 2);
}

// A kernel that takes longer at small m does so at every n; and the last row of a line may take
// what it takes.
TEST(Spikes, ALineOfSlowerRowsAndTheLastRowAreKept) {
  const TableDirectory directory;
  directory.write("gemm.csv", table({{10, 12, 16}, {110, 130, 180}, {13, 16, 240}}));
  const Estimate slower = price(directory, 128, 2048);
  EXPECT_EQ(slower.basis, Basis::kMeasured);
  EXPECT_DOUBLE_EQ(slower.time.value(), 130e-6);
  EXPECT_DOUBLE_EQ(price(directory, 256, 4096).time.value(), 240e-6);
}

// Published tables have some: 16 sequences of 128 tokens at 3,116 us between rows of 15.
TEST(Spikes, FewRowsOfShippedTablesStandAlone) {
  std::int64_t rows = 0;
  std::int64_t spikes = 0;
  std::int64_t of_own = 0;
  for (const char* name :
       {"h200-sxm/trtllm-1.3.0rc20", "h200-sxm/vllm-0.24.0", "h200-sxm/sglang-0.5.14",
        "h100-sxm/vllm-0.24.0", "h200-sxm/orrery", "h100-sxm/orrery"}) {
    const Provider provider = Provider::load(kDevices / name);
    for (const std::string& kernel : provider.kernels()) {
      const KernelTable& table = *provider.tables().table(kernel);
      (provider.name() == kOwnProvider ? of_own : spikes) += table.num_spikes();
      for (const auto& [key, grid] : table.families()) {
        if (key.back() != KernelTable::kAllWays) continue;
        rows += std::ranges::count_if(grid.time_s, [](double time) { return !std::isnan(time); });
      }
    }
  }
  RecordProperty("rows", std::to_string(rows));
  EXPECT_EQ(spikes, 38);
  EXPECT_EQ(of_own, 0);
  EXPECT_GT(rows, 2000 * spikes);
}

}  // namespace
}  // namespace orrery
