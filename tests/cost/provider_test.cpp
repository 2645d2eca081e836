#include <gtest/gtest.h>

#include "tests/cost/cost_testing.h"

namespace orrery {
namespace {

using testing::error_of;
using testing::expect_contains;
using testing::TableDirectory;

constexpr const char* kSourcedHeader = "dtype,m,n,k,time_us,source\n";

// The error of parsing a gemm.csv of these lines.
std::string gemm_error(const std::string& content) {
  const TableDirectory directory;
  directory.write("gemm.csv", content);
  const Provider provider = Provider::load(directory.path());
  return error_of([&] { (void)provider.num_rows("gemm"); });
}

TEST(Provider, CountsRowsAndNamesItsKernels) {
  const TableDirectory directory;
  directory.write("gemm.csv",
                  std::string(kSourcedHeader) + "bf16,1,2,3,4.5,0\r\n\nfp8,1,2,3,4,0\n");
  const Provider provider = Provider::load(directory.path());
  EXPECT_EQ(provider.kernels(), std::vector<std::string>{"gemm"});
  EXPECT_TRUE(provider.has_kernel("gemm"));
  EXPECT_FALSE(provider.has_kernel("moe"));
  EXPECT_EQ(provider.num_rows("gemm"), 2);
  EXPECT_EQ(provider.num_rows("moe"), 0);
}

TEST(Provider, NamesFileAndLineOfABadNumber) {
  const std::string error =
      gemm_error(std::string(kSourcedHeader) + "bf16,1,2,3,4.5,0\nbf16,1,x,3,4.5,0\n");
  expect_contains(error, "gemm.csv:3:");
  expect_contains(error, "column n: found 'x'");
}

TEST(Provider, RejectsTimesThatAreNotPositiveAndFinite) {
  for (const std::string time : {"0", "-1", "nan", "inf", "", "1.5ms"}) {
    expect_contains(gemm_error(std::string(kSourcedHeader) + "bf16,1,2,3," + time + ",0\n"),
                    "gemm.csv:2: column time_us");
  }
}

TEST(Provider, RejectsAZeroDim) {
  expect_contains(gemm_error(std::string(kSourcedHeader) + "bf16,0,2,3,1,0\n"),
                  "column m: found 0");
}

TEST(Provider, RejectsTooFewAndTooManyFields) {
  expect_contains(gemm_error(std::string(kSourcedHeader) + "bf16,1,2,3\n"),
                  "gemm.csv:2: found 4 fields");
  expect_contains(gemm_error(std::string(kSourcedHeader) + "bf16,1,2,3,4,0,9\n"), "found 7 fields");
}

TEST(Provider, RejectsAnUnknownDtypeWithItsLine) {
  expect_contains(gemm_error(std::string(kSourcedHeader) + "bf17,1,2,3,4,0\n"),
                  "gemm.csv:2: column dtype");
}

TEST(Provider, RejectsAMissingColumn) {
  const std::string error = gemm_error("dtype,m,n,time_us\nbf16,1,2,3\n");
  expect_contains(error, "no column 'k'");
  expect_contains(error, "found dtype, m, n, time_us");
}

TEST(Provider, RejectsAnEmptyFile) { expect_contains(gemm_error(""), "no header"); }

TEST(Provider, RejectsATableOfAnUnknownKernel) {
  const TableDirectory directory;
  directory.write("gem.csv", kSourcedHeader);
  expect_contains(error_of([&] { Provider::load(directory.path()); }), "no kernel of that name");
}

TEST(Provider, RejectsADirectoryThatIsMissingOrEmpty) {
  const TableDirectory directory;
  expect_contains(error_of([&] { Provider::load(directory.path()); }), "no CSV file");
  expect_contains(error_of([&] { Provider::load(directory.path() / "none"); }), "not a directory");
}

std::string inclusion_error(const std::string& lines) {
  const TableDirectory directory;
  directory.write("gemm.csv", "dtype,m,n,k,time_us\nbf16,16,256,512,12.5\n");
  directory.write("includes.csv", lines);
  try {
    Provider::load(directory.path());
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "(loaded)";
}

TEST(Provider, SaysWhichLineOfItsInclusionsIsWrong) {
  const std::string header = "kernel,dtype,includes,floor_us\n";
  EXPECT_EQ(inclusion_error(header + "gemm,any,quantize,0\ngemm,fp8,quantize,2.5\n"), "(loaded)");
  expect_contains(inclusion_error(header + "gem,fp8,quantize,2\n"), "includes.csv:2");
  expect_contains(inclusion_error(header + "gemm,fp8,quantise,2\n"), "quantise");
  expect_contains(inclusion_error(header + "gemm,fp7,quantize,2\n"), "fp7");
  expect_contains(inclusion_error(header + "gemm,fp8,quantize,-2\n"), "includes.csv:2");
  expect_contains(inclusion_error("kernel,dtype,includes\n"), "floor_us");
}

TEST(Provider, SaysWhichLineOfItsBackendsIsWrong) {
  const auto error = [](const std::string& lines) {
    const TableDirectory directory;
    directory.write("gemm.csv", "dtype,m,n,k,time_us\nbf16,16,256,512,12.5\n");
    directory.write("backends.csv", lines);
    return error_of([&] { (void)Provider::load(directory.path()); });
  };
  const std::string header = "kernel,dtype,source,backend\n";
  expect_contains(error(header + "moe,bf16,1,triton\nmo,bf16,1,triton\n"),
                  "backends.csv:3: found kernel 'mo'");
  expect_contains(error(header + "moe,bf16,1,tritn\n"),
                  "backends.csv:2: found backend 'tritn'; expected one of cutlass");
  expect_contains(error(header + "moe,bf17,1,triton\n"), "backends.csv:2: ");
  expect_contains(error(header + "moe,bf16,x,triton\n"), "column source: found 'x'");
  expect_contains(error("kernel,dtype,source\n"), "no column 'backend'");
}

TEST(Provider, ParsesOnlyTheKernelsAskedFor) {
  const TableDirectory directory;
  directory.write("gemm.csv", std::string(kSourcedHeader) + "bf16,1,2,3,4.5,0\n");
  directory.write("quantize.csv", "dtype,tokens,hidden,time_us\nfp8,1,oops,1\n");
  const Provider provider = Provider::load(directory.path());
  EXPECT_EQ(provider.num_rows("gemm"), 1);
  expect_contains(error_of([&] { (void)provider.num_rows("quantize"); }), "quantize.csv:2:");
}

constexpr const char* kStates = "dtype,m,n,k,time_us,spread,l2,mode\n";

TEST(Provider, ReadsRowsOfAColdCacheInAGraph) {
  const TableDirectory directory;
  directory.write("gemm.csv", std::string(kStates) +
                                  "bf16,16,256,512,10,0.004,cold,graph\n"
                                  "bf16,16,256,512,4,0.004,warm,graph\n"
                                  "bf16,16,256,512,6,0.004,cold,eager\n");
  const Provider provider = Provider::load(directory.path());
  EXPECT_EQ(provider.num_rows("gemm"), 1);
  const Machine machine = make_machine(testing::node_spec());
  const CostModel cost(machine, &provider, nullptr, {});
  EXPECT_NEAR(cost.kernel(testing::gemm(16, 256, 512)).time.value(), 10e-6, 1e-12);
}

// Gaps of 2, 1 and 4 us, of which 2 is the median; the call of 60 us is too long to show its own.
TEST(Provider, CallsLaunchedOneByOneTakeTheGapThatWasMeasuredBesides) {
  const TableDirectory directory;
  directory.write("gemm.csv", std::string(kStates) +
                                  "bf16,16,256,512,10,0.004,cold,graph\n"
                                  "bf16,16,256,512,12,0.004,cold,eager\n"
                                  "bf16,32,256,512,20,0.004,cold,graph\n"
                                  "bf16,32,256,512,21,0.004,cold,eager\n"
                                  "bf16,32,256,512,9,0.004,warm,graph\n"
                                  "bf16,64,256,512,24,0.004,cold,eager\n"
                                  "bf16,64,256,512,20,0.004,cold,graph\n"
                                  "bf16,512,256,512,60,0.004,cold,graph\n"
                                  "bf16,512,256,512,90,0.004,cold,eager\n"
                                  "bf16,9,256,512,90,0.004,cold,eager\n");
  const Provider provider = Provider::load(directory.path());
  const Machine machine = make_machine(testing::node_spec());
  const CostModel graph(machine, &provider, nullptr, {.launch_mode = LaunchMode::kGraph});
  const CostModel eager(machine, &provider, nullptr, {.launch_mode = LaunchMode::kEager});
  for (const std::int64_t m : {16, 32, 40, 512}) {
    const KernelOp op = testing::gemm(m, 256, 512);
    EXPECT_NEAR((eager.kernel(op).time - graph.kernel(op).time).value(), 2e-6, 1e-12) << m;
  }
}

TEST(Provider, RejectsAStateThatItDoesNotKnow) {
  expect_contains(gemm_error(std::string(kStates) + "bf16,1,2,3,4,0.1,tepid,graph\n"),
                  "gemm.csv:2: column l2: found 'tepid'; expected cold or warm");
}

TEST(Provider, TheSpreadOfARowReachesItsEstimate) {
  const TableDirectory directory;
  directory.write("gemm.csv", std::string(kStates) +
                                  "bf16,16,256,512,10,0.1349,cold,graph\n"
                                  "bf16,32,256,512,10,0.0001,cold,graph\n");
  const Provider provider = Provider::load(directory.path());
  const Machine machine = make_machine(testing::node_spec());
  const CostModel cost(machine, &provider, nullptr, {});
  // An interquartile range of 1.349 deviations.
  EXPECT_NEAR(cost.kernel(testing::gemm(16, 256, 512)).spread, 0.1, 1e-9);
  // Never below what repeated runs differ by.
  EXPECT_NEAR(cost.kernel(testing::gemm(32, 256, 512)).spread, 0.01, 1e-9);
}

TEST(Provider, ShippedTablesParse) {
  const std::filesystem::path devices =
      std::filesystem::path(ORRERY_SOURCE_DIR) / "topologies" / "devices";
  for (const char* name :
       {"h200-sxm/vllm-0.24.0", "h200-sxm/trtllm-1.3.0rc20", "h100-sxm/vllm-0.24.0"}) {
    const Provider provider = Provider::load(devices / name);
    for (const std::string& kernel : provider.kernels()) {
      EXPECT_GT(provider.num_rows(kernel), 800) << name << " " << kernel;
    }
  }
}

}  // namespace
}  // namespace orrery
