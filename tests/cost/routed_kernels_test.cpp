// Kernels of routed experts: rows measured along curves, experts that are told apart by number
// alone, and experts without rows.

#include <gtest/gtest.h>

#include <cmath>

#include "sim/cost/kernel_table.h"
#include "tests/cost/cost_testing.h"

namespace orrery {
namespace {

using testing::node_spec;
using testing::TableDirectory;

KernelOp grouped(std::int64_t rows, std::int64_t active, std::int64_t groups = 16) {
  return {.kernel = "grouped_gemm",
          .dtype = DType::kBf16,
          .dims = {{"rows", rows, ""},
                   {"n", 2048, ""},
                   {"k", 5120, ""},
                   {"groups", groups, ""},
                   {"active", active, ""}}};
}

KernelOp slice(std::int64_t m, std::int64_t expert) {
  return {.kernel = "expert_gemm",
          .dtype = DType::kBf16,
          .dims = {{"m", m, ""}, {"n", 2048, ""}, {"k", 5120, ""}, {"expert", expert, ""}}};
}

class RoutedKernels : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& rows) { directory_.write(name, rows); }
  Estimate price(const KernelOp& op) {
    const Provider provider = Provider::load(directory_.path());
    return CostModel(machine_, &provider, nullptr, {}).kernel(op);
  }
  // Of the work model alone, microseconds.
  double model_us(const KernelOp& op) {
    return CostModel(machine_, nullptr, nullptr, {}).kernel(op).time.value() * 1e6;
  }

  Machine machine_ = make_machine(node_spec(1));
  TableDirectory directory_;
};

constexpr const char* kGroupedColumns = "dtype,rows,n,k,groups,active,time_us\n";

// Rows and active experts as even routing has them: no two rows of the table agree in one of them.
TEST_F(RoutedKernels, BetweenTwoBatchesOfACurveTimesAreInterpolated) {
  write("grouped_gemm.csv", std::string(kGroupedColumns) + "bf16,4,2048,5120,16,4,30\n" +
                                "bf16,8,2048,5120,16,6,40\n" + "bf16,16,2048,5120,16,10,60\n" +
                                "bf16,64,2048,5120,16,16,90\n");
  EXPECT_NEAR(price(grouped(8, 6)).time.value(), 40e-6, 1e-15);
  EXPECT_EQ(price(grouped(8, 6)).basis, Basis::kMeasured);
  const Estimate between = price(grouped(11, 8));
  EXPECT_EQ(between.basis, Basis::kInterpolated);
  EXPECT_GT(between.time.value(), 40e-6);
  EXPECT_LT(between.time.value(), 60e-6);
}

// At equal rows a skewed load reads fewer experts: the ratio to the work model stays, and the work
// model's weights go with them.
TEST_F(RoutedKernels, FewerActiveExpertsTakeTheirPartOfTheTime) {
  const double ratio = 1.2;
  const double measured = ratio * model_us(grouped(64, 16));
  write("grouped_gemm.csv", std::string(kGroupedColumns) + "bf16,64,2048,5120,16,16," +
                                std::to_string(measured) + "\n");
  const double half = price(grouped(64, 8)).time.value() * 1e6;
  EXPECT_NEAR(half, ratio * model_us(grouped(64, 8)), 1e-3);
  EXPECT_LT(half, 0.6 * measured);
}

// Until a gather in the gemm is measured it takes what the gemm does, where both go in tiles; of
// few rows, whose weights the gemm streams, what the work model of its tiles says.
TEST_F(RoutedKernels, AGatherInTheGemmIsPricedByTheRowsOfTheSameTiles) {
  const auto gathered = [](std::int64_t rows) {
    KernelOp op = grouped(rows, 16);
    op.kernel = "grouped_gemm_gather";
    op.dims.push_back({"tokens", rows, ""});
    return op;
  };
  write("grouped_gemm.csv", std::string(kGroupedColumns) + "bf16,64,2048,5120,16,16,90\n" +
                                "bf16,16384,2048,5120,16,16,700\n");
  EXPECT_NEAR(price(gathered(16384)).time.value(), 700e-6, 1e-12);
  EXPECT_EQ(price(gathered(16384)).basis, Basis::kInterpolated);
  EXPECT_EQ(price(gathered(64)).basis, Basis::kRoofline);
  EXPECT_NEAR(price(gathered(64)).time.value(), model_us(gathered(64)) * 1e-6, 1e-12);
}

// As many rows of 14 experts fill their tiles otherwise: here they take three times as long for
// their work.
TEST_F(RoutedKernels, ACallOfAllExpertsFollowsFromCallsOfAllExperts) {
  const auto row = [&](std::int64_t rows, std::int64_t active, double ratio) {
    return "bf16," + std::to_string(rows) + ",2048,5120,16," + std::to_string(active) + "," +
           std::to_string(ratio * model_us(grouped(rows, active))) + "\n";
  };
  write("grouped_gemm.csv",
        kGroupedColumns + row(1024, 16, 1.5) + row(1280, 14, 4.5) + row(1536, 16, 1.5));
  const Estimate between = price(grouped(1280, 16));
  EXPECT_EQ(between.basis, Basis::kInterpolated);
  EXPECT_NEAR(between.time.value() * 1e6, 1.5 * model_us(grouped(1280, 16)), 1e-3);
  // Rows of 15 experts: nothing else of them is measured.
  EXPECT_GT(price(grouped(1280, 15)).time.value() * 1e6, 4 * model_us(grouped(1280, 15)));
}

TEST_F(RoutedKernels, AnotherNumberOfGroupsIsAnsweredFromTheNearest) {
  write("grouped_gemm.csv", std::string(kGroupedColumns) + "bf16,64,2048,5120,16,16,90\n");
  EXPECT_EQ(price(grouped(64, 16, 64)).basis, Basis::kRoofline);
  EXPECT_NEAR(price(grouped(64, 16, 64)).time.value(), 90e-6, 1e-12);  // the same work
}

TEST_F(RoutedKernels, EveryExpertTakesWhatIsMeasuredOfOne) {
  write("expert_gemm.csv", "dtype,m,n,k,expert,time_us\nbf16,8,2048,5120,0,12\n");
  for (const std::int64_t expert : {0, 5, 127}) {
    const Estimate estimate = price(slice(8, expert));
    EXPECT_NEAR(estimate.time.value(), 12e-6, 1e-15);
    EXPECT_EQ(estimate.basis, Basis::kMeasured);
  }
}

TEST_F(RoutedKernels, AnExpertsGemmTakesAsLongAsAnyWhereItHasNoRowsOfItsOwn) {
  write("gemm.csv", "dtype,m,n,k,time_us\nbf16,8,2048,5120,11\n");
  const Estimate estimate = price(slice(8, 3));
  EXPECT_NEAR(estimate.time.value(), 11e-6, 1e-15);
  EXPECT_EQ(estimate.basis, Basis::kInterpolated);
}

TEST_F(RoutedKernels, AnExpertWithoutRowsTakesNoTime) {
  write("expert_gemm.csv", "dtype,m,n,k,expert,time_us\nbf16,8,2048,5120,0,12\n");
  EXPECT_EQ(price(slice(0, 3)).time.value(), 0);
  EXPECT_FALSE(is_launched(slice(0, 3)));
  EXPECT_TRUE(is_launched(slice(1, 3)));
}

// A grouped gemm whose counts the device alone knows is launched whatever they are.
TEST_F(RoutedKernels, AGroupedGemmOfNoRowsIsLaunched) {
  EXPECT_TRUE(is_launched(grouped(0, 0)));
  EXPECT_GT(CostModel(machine_, nullptr, nullptr, {}).kernel(grouped(0, 0)).time.value(), 0);
}

// Weights of one expert are 21 MB, 4.4 us at 4.8 TB/s; floors aside time follows active experts.
TEST_F(RoutedKernels, WithoutMeasurementsTimeFollowsActiveExperts) {
  const double one = model_us(grouped(1, 1));
  const double all = model_us(grouped(16, 16));
  const double expert = 2048.0 * 5120 * 2 / 4.8e12 * 1e6;
  EXPECT_GT(all - one, 15 * expert);
  EXPECT_LT(all - one, 15 * expert * 1.2);
}

TEST_F(RoutedKernels, Fp8IsComputedAtItsOwnPeak) {
  KernelOp op = grouped(16384, 16);
  const double bf16 = model_us(op);
  op.dtype = DType::kFp8;
  EXPECT_LT(model_us(op), 0.6 * bf16);
}

}  // namespace
}  // namespace orrery
