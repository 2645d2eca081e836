#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <map>
#include <thread>

#include "tests/cost/cost_testing.h"

namespace orrery {
namespace {

using testing::gemm;
using testing::node_spec;
using testing::TableDirectory;

constexpr const char* kGemmHeader = "dtype,m,n,k,time_us\n";

// As node_spec(), under another name and with its rates multiplied; SMs follow the peak.
Device device_like_node(const std::string& name, double flops, double bandwidth) {
  Device device = node_spec().device;
  device.name = name;
  device.vendor = "vendor";
  device.architecture = "arch";
  device.hbm_bandwidth = device.hbm_bandwidth * bandwidth;
  device.num_sms = static_cast<int>(100 * flops);
  for (auto& [dtype, rate] : device.dense_flops) {
    rate = rate * flops;
  }
  return device;
}

Machine machine_of(const Device& device) {
  MachineSpec spec = node_spec();
  spec.device = device;
  return make_machine(spec);
}

// A gemm table of one row, measured on `device`.
struct Measured {
  explicit Measured(Device measured_on, const std::string& rows) : device(std::move(measured_on)) {
    const TableDirectory directory;
    directory.write("gemm.csv", kGemmHeader + rows);
    provider = Provider::load(directory.path());
    (void)provider.num_rows("gemm");  // parsed before the directory goes
  }
  KernelSource as(Origin origin) const { return {&provider, &device, origin}; }

  Device device;
  Provider provider;
};

Seconds work_time(const Device& device, const KernelOp& op) {
  return CostModel(machine_of(device), nullptr, nullptr, {}).kernel(op).time;
}

// What a row of `ratio` times the work model on `from` says of `to`.
Seconds transferred(const Device& from, const Device& to, const KernelOp& op, double ratio) {
  char row[80];
  std::snprintf(row, sizeof row, "bf16,%ld,%ld,%ld,%.15g\n", static_cast<long>(op.dims[0].size),
                static_cast<long>(op.dims[1].size), static_cast<long>(op.dims[2].size),
                1e6 * ratio * work_time(from, op).value());
  const Measured measured(from, row);
  const Machine machine = machine_of(to);
  const CostModel cost(machine, {measured.as(Origin::kSibling)}, {}, {});
  EXPECT_EQ(cost.kernel(op).basis, Basis::kBorrowed);
  return cost.kernel(op).time;
}

TEST(Transfer, AnEfficiencyAboveTheWorkModelsCarriesOver) {
  const Device fast = device_like_node("fast", 1, 1);
  const Device slow = device_like_node("slow", 0.7, 0.5);
  const KernelOp op = gemm(16, 4096, 4096);
  EXPECT_NEAR(transferred(fast, slow, op, 0.8) / work_time(slow, op), 0.8, 1e-9);
}

TEST(Transfer, WhatIsSlowerThanTheWorkModelIsNotBlamedOnTheMemory) {
  // Half the bandwidth, equal peak: the half of the model's time that was lost is lost again, no
  // more.
  const Device fast = device_like_node("fast", 1, 1);
  const Device slow = device_like_node("slow", 1, 0.5);
  const KernelOp op = gemm(16, 4096, 4096);
  EXPECT_NEAR(transferred(fast, slow, op, 1.5) / (work_time(slow, op) + 0.5 * work_time(fast, op)),
              1, 1e-9);
}

TEST(Transfer, AComputeBoundInefficiencyGrowsWithThePeak) {
  // Half the peak, equal bandwidth: 1.5 times the model stays 1.5 times the model.
  const Device fast = device_like_node("fast", 1, 1);
  const Device slow = device_like_node("slow", 0.5, 1);
  const KernelOp op = gemm(16384, 16384, 16384);
  EXPECT_NEAR(transferred(fast, slow, op, 1.5) / work_time(slow, op), 1.5, 1e-9);
}

TEST(Transfer, SlowerTensorUnitsComeNearerToTheirPeak) {
  // A quarter of the peak on as many SMs. At 0.6 of the peak, 1/0.92 of 1/0.6 is the units' own
  // time; the rest belongs to the SM and takes a quarter as long in terms of the new peak: 1/0.92 +
  // (1/0.6 - 1/0.92) / 4 = 1.232 instead of 1.667 times flops / peak. 16384^3 is 99 % arithmetic.
  const Device fast = device_like_node("fast", 1, 1);
  Device cut = device_like_node("cut", 0.25, 1);
  cut.num_sms = fast.num_sms;
  const KernelOp op = gemm(16384, 16384, 16384);
  EXPECT_NEAR(transferred(fast, cut, op, 1) / work_time(cut, op), 1.232 / 1.667, 5e-3);
  // Faster units are no nearer.
  Device wide = device_like_node("wide", 4, 1);
  wide.num_sms = fast.num_sms;
  EXPECT_NEAR(transferred(fast, wide, op, 1) / work_time(wide, op), 1, 1e-9);
}

TEST(Transfer, TheOrderIsProviderThenDeviceThenArchitecture) {
  const Device asked = device_like_node("asked", 1, 1);
  const Device sibling = device_like_node("sibling", 1, 2);
  Device cousin = device_like_node("cousin", 1, 2);
  cousin.architecture = "older";
  Device stranger = cousin;
  stranger.vendor = "another";
  EXPECT_EQ(origin("orrery", asked, "orrery", asked), Origin::kOwn);
  EXPECT_EQ(origin("orrery", asked, "a", asked), Origin::kOtherProvider);
  EXPECT_EQ(origin("a", asked, "orrery", asked), Origin::kNone);  // no engine runs our kernels
  EXPECT_EQ(origin("a", asked, "a", asked), Origin::kOwn);
  EXPECT_EQ(origin("a", asked, "a", sibling), Origin::kSibling);
  EXPECT_EQ(origin("a", asked, "b", asked), Origin::kOtherProvider);
  EXPECT_EQ(origin("a", asked, "b", sibling), Origin::kOtherProviderOnSibling);
  EXPECT_EQ(origin("a", asked, "a", cousin), Origin::kOtherArchitecture);
  EXPECT_EQ(origin("a", asked, "b", cousin), Origin::kOtherProviderAndArchitecture);
  EXPECT_EQ(origin("a", asked, "a", stranger), Origin::kNone);
}

TEST(Transfer, DevicesOfUnknownArchitectureAreNoKin) {
  Device one = device_like_node("one", 1, 1);
  Device other = device_like_node("other", 1, 1);
  one.architecture = other.architecture = "";
  one.vendor = other.vendor = "";
  EXPECT_EQ(origin("a", one, "a", other), Origin::kNone);
}

TEST(Transfer, TheFirstTableThatHoldsTheFamilyAnswers) {
  // A gemm's family is its dtype: the own table has bf16 only, another provider's fp8 too, and
  // another architecture's int8 is not asked while this one has some gemm.
  const Device device = device_like_node("device", 1, 1);
  const Measured own(device, "bf16,16,256,512,10\n");
  const Measured other(device, "bf16,16,256,512,11\nfp8,16,256,512,7\n");
  const Measured foreign(device, "fp8,16,256,512,5\nint4,16,256,512,5\n");
  const Machine machine = machine_of(device);
  const CostModel cost(machine,
                       {own.as(Origin::kOwn), other.as(Origin::kOtherProvider),
                        foreign.as(Origin::kOtherArchitecture)},
                       {}, {});
  EXPECT_EQ(cost.kernel(gemm(16, 256, 512)).basis, Basis::kMeasured);
  EXPECT_NEAR(cost.kernel(gemm(16, 256, 512)).time.value(), 10e-6, 1e-15);
  const Estimate fp8 = cost.kernel(gemm(16, 256, 512, DType::kFp8));
  EXPECT_NEAR(fp8.time.value(), 7e-6, 1e-15);
  EXPECT_EQ(fp8.basis, Basis::kInterpolated);
  const Estimate int4 = cost.kernel(gemm(16, 256, 512, DType::kInt4));
  EXPECT_NE(int4.time, Seconds(5e-6));
  EXPECT_EQ(int4.basis, Basis::kRoofline);
  EXPECT_EQ(cost.sources_used(), (std::vector<SourceUse>{{"gemm", 0}, {"gemm", 1}}));
}

TEST(Transfer, AnotherArchitectureAnswersWhereThisOneHasNothingAndIsCalledRoofline) {
  const Device device = device_like_node("device", 1, 1);
  const Measured foreign(device, "bf16,16,256,512,9\n");
  const Machine machine = machine_of(device);
  const CostModel cost(machine, {foreign.as(Origin::kOtherArchitecture)}, {}, {});
  const Estimate estimate = cost.kernel(gemm(16, 256, 512));
  EXPECT_NEAR(estimate.time.value(), 9e-6, 1e-15);
  EXPECT_EQ(estimate.basis, Basis::kRoofline);
  EXPECT_GE(estimate.spread, 0.25);
}

TEST(Transfer, AFormatWithoutRowsTakesTheEfficiencyOfTheNearest) {
  // nvfp4 GEMMs are narrow as fp8's are: 0.8 times the work model there, not bf16's 0.5, though the
  // device of the rows does not compute in nvfp4 at all.
  const Device hopper = device_like_node("hopper", 1, 1);
  Device blackwell = device_like_node("blackwell", 2, 1.5);
  blackwell.dense_flops[DType::kNvfp4] = FlopsPerSecond(8e15);
  char rows[160];
  std::snprintf(rows, sizeof rows, "bf16,64,4096,4096,%.15g\nfp8,64,4096,4096,%.15g\n",
                0.5e6 * work_time(hopper, gemm(64, 4096, 4096)).value(),
                0.8e6 * work_time(hopper, gemm(64, 4096, 4096, DType::kFp8)).value());
  const Measured measured(hopper, rows);
  const Machine machine = machine_of(blackwell);
  const CostModel cost(machine, {measured.as(Origin::kOtherArchitecture)}, {}, {});
  const KernelOp op = gemm(64, 4096, 4096, DType::kNvfp4);
  EXPECT_NEAR(cost.kernel(op).time / work_time(blackwell, op), 0.8, 1e-9);
  EXPECT_EQ(cost.kernel(op).basis, Basis::kRoofline);
}

TEST(Transfer, SpreadGrowsWithTheDistanceOfTheKin) {
  const Device device = device_like_node("device", 1, 1);
  const Measured measured(device, "bf16,16,256,512,9\n");
  const Machine machine = machine_of(device);
  double before = 0;
  for (const Origin origin :
       {Origin::kOwn, Origin::kSibling, Origin::kOtherProvider, Origin::kOtherArchitecture}) {
    const double spread =
        CostModel(machine, {measured.as(origin)}, {}, {}).kernel(gemm(16, 256, 512)).spread;
    EXPECT_GT(spread, before);
    before = spread;
  }
}

TEST(SharedTables, AreReadOnceAndAgainWhenTheyChange) {
  const TableDirectory directory;
  directory.write("gemm.csv", std::string(kGemmHeader) + "bf16,16,256,512,9\n");
  const auto first = shared_provider(directory.path());
  EXPECT_EQ(shared_provider(directory.path() / "."), first);
  EXPECT_EQ(first->num_rows("gemm"), 1);
  directory.write("gemm.csv", std::string(kGemmHeader) + "bf16,16,256,512,9\nbf16,1,2,5,9\n");
  const auto file = directory.path() / "gemm.csv";
  std::filesystem::last_write_time(file,
                                   std::filesystem::last_write_time(file) + std::chrono::hours(1));
  EXPECT_EQ(shared_provider(directory.path())->num_rows("gemm"), 2);
  EXPECT_EQ(first->num_rows("gemm"), 1);
}

TEST(SharedTables, AreReadByAForkedChildWhileTheParentReadsThem) {
  const TableDirectory directory;
  directory.write("gemm.csv", std::string(kGemmHeader) + "bf16,16,256,512,9\n");
  std::atomic<bool> is_done = false;
  std::thread reader([&] {
    while (!is_done) shared_provider(directory.path());
  });
  int num_done = 0;
  for (int child = 0; child < 50; ++child) {
    const pid_t process = fork();
    if (process == 0) {
      alarm(10);  // a child that waits for ever is ended
      shared_provider(directory.path());
      _exit(0);
    }
    int status = 0;
    waitpid(process, &status, 0);
    if (!WIFEXITED(status)) break;
    ++num_done;
  }
  is_done = true;
  reader.join();
  EXPECT_EQ(num_done, 50);
}

// The H200 and the H100 are one chip with two memories, and both are measured: what the H200's
// tables say of the H100 shows how far an efficiency carries. Limits are docs/data.md's figures
// with slack, in percent.
TEST(Transfer, TheH100IsPredictedFromTheH200) {
  const std::filesystem::path devices =
      std::filesystem::path(ORRERY_SOURCE_DIR) / "topologies" / "devices";
  const auto hopper = [](const std::string& name, double bandwidth) {
    Device device = device_like_node(name, 1, 1);
    device.hbm_bandwidth = BytesPerSecond(bandwidth);
    device.dense_flops = {{DType::kBf16, FlopsPerSecond(989e12)},
                          {DType::kFp8, FlopsPerSecond(1979e12)}};
    return device;
  };
  const Device h200 = hopper("h200-sxm", 4.8e12);
  const Device h100 = hopper("h100-sxm", 3.35e12);
  const Provider on_h200 = Provider::load(devices / "h200-sxm/vllm-0.24.0");
  const Provider on_h100 = Provider::load(devices / "h100-sxm/vllm-0.24.0");
  const auto errors = transfer_errors({&on_h100, &h100}, {&on_h200, &h200});
  ASSERT_GE(errors.size(), 10u);
  const std::map<std::string, double> limits = {
      {"attention_decode", 3.5}, {"attention_prefill", 4.5}, {"gemm", 7}, {"moe", 9}};
  for (const HeldOutError& error : errors) {
    EXPECT_LT(100 * error.median, limits.at(error.kernel)) << error.kernel << " " << error.dtype;
    EXPECT_LT(100 * error.p95, 30) << error.kernel << " " << error.dtype;
    EXPECT_LT(std::abs(error.bias), 0.1) << error.kernel << " " << error.dtype;
  }
}

}  // namespace
}  // namespace orrery
