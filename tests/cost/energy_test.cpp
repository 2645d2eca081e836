#include "sim/cost/energy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/cost/cost_testing.h"

namespace orrery {
namespace {

constexpr BoardPower kPower{.waiting = Watts(100), .hbm = Watts(500), .arithmetic = Watts(800)};

// 1 TB/s of HBM and 100 TFLOP/s in bf16, so that a GB takes 1 ms and a TFLOP 10 ms.
Device device() {
  Device device{.name = "round",
                .vendor = "nvidia",
                .architecture = "hopper",
                .hbm_capacity = Bytes(80e9),
                .hbm_bandwidth = BytesPerSecond(1e12)};
  device.dense_flops[DType::kBf16] = FlopsPerSecond(100e12);
  device.power = kPower;
  return device;
}

KernelOp bf16_gemm(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.kernel = "gemm", .dtype = DType::kBf16, .dims = {{"m", m}, {"n", n}, {"k", k}}};
}

// Reads and writes 2 bytes of each of 1,000 x 4,096 numbers: 16.4 MB at 500 W for each TB/s, J =
// 500 * 16.4e6 / 1e12.
TEST(Energy, RowsTakeTheirBytes) {
  const KernelOp op{
      .kernel = "rms_norm", .dtype = DType::kBf16, .dims = {{"tokens", 1000}, {"hidden", 4096}}};
  const Work work = work_of(op);
  const double bytes = (work.bytes_read + work.bytes_written).value();
  EXPECT_NEAR(energy_of(kPower, device(), op).value(), 500 * bytes / 1e12, 1e-12);
}

// (a C)^1.5 + (h M)^1.5 = E^1.5, with C and M by hand of 4,096^3: 2 * 4,096^3 FLOP, 3 * 4,096^2
// numbers of 2 bytes.
TEST(Energy, OfAGemmIsLessThanTheSumOfItsPartsAndMoreThanEither) {
  const double arithmetic = 800 * 2 * std::pow(4096.0, 3) / 100e12;
  const double moved = 500 * 3 * 4096.0 * 4096.0 * 2 / 1e12;
  const double energy = energy_of(kPower, device(), bf16_gemm(4096, 4096, 4096)).value();
  EXPECT_NEAR(energy, std::pow(std::pow(arithmetic, 1.5) + std::pow(moved, 1.5), 2.0 / 3),
              1e-9 * energy);
  EXPECT_GT(energy, std::max(arithmetic, moved));
  EXPECT_LT(energy, arithmetic + moved);
}

TEST(Energy, FollowsTheWorkAndNotTheDevicesRates) {
  const KernelOp op = bf16_gemm(1024, 4096, 4096);
  Device faster = device();
  faster.hbm_bandwidth = faster.hbm_bandwidth * 2;
  faster.dense_flops[DType::kBf16] = faster.dense_flops[DType::kBf16] * 2;
  BoardPower of_faster = kPower;  // a byte and an operation take the same
  of_faster.hbm = of_faster.hbm * 2;
  of_faster.arithmetic = of_faster.arithmetic * 2;
  EXPECT_NEAR(energy_of(of_faster, faster, op) / energy_of(kPower, device(), op), 1, 1e-12);
  EXPECT_GT(energy_of(kPower, device(), bf16_gemm(2048, 4096, 4096)),
            energy_of(kPower, device(), op));
}

TEST(Energy, ACostModelGivesItWithAndWithoutRowsAndNoneWithoutAPower) {
  Machine machine;
  machine.spec.device = device();
  machine.spec.num_gpus = 1;
  const CostModel cost(machine, nullptr, nullptr, {});
  const KernelOp op = bf16_gemm(128, 4096, 4096);
  EXPECT_EQ(cost.kernel(op).energy, energy_of(kPower, device(), op));
  machine.spec.device.power.reset();
  const CostModel unknown(machine, nullptr, nullptr, {});
  EXPECT_EQ(unknown.kernel(op).energy, Joules(0));
}

}  // namespace
}  // namespace orrery
