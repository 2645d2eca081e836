// A layer of routed experts tile by tile: by hand where it has few tasks, near its rows where they
// were measured, and what prices shapes that no rows are of.

#include "sim/cost/moe_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "sim/cost/interpolate.h"
#include "sim/cost/kernel_table.h"
#include "tests/cost/cost_testing.h"

namespace orrery {
namespace {

constexpr FlopsPerSecond kPeak(989e12);

MoeTileTimes fitted() { return h200_moe_tile_times(); }
double duration(const FusedMoeShape& shape, MoeTileOrder order = MoeTileOrder::kBehind) {
  return simulate_moe_tiles(shape, fitted(), order).duration.value();
}

const KernelRows& measured() {
  static const KernelRows rows =
      read_kernel_rows(std::filesystem::path(ORRERY_SOURCE_DIR) /
                       "topologies/devices/h200-sxm/orrery/fused_moe.csv");
  return rows;
}
std::int64_t size(std::int64_t row, std::string_view name) {
  const auto& dims = measured().spec->dims;
  const auto found = std::ranges::find(dims, name, &DimSpec::name);
  return measured().row_dims(row)[static_cast<std::size_t>(found - dims.begin())];
}
FusedMoeShape shape_of(std::int64_t row) {
  return {.tokens = size(row, "tokens"),
          .hidden = size(row, "hidden"),
          .ffn = size(row, "ffn"),
          .experts = size(row, "experts_total"),
          .topk = size(row, "topk"),
          .activation = static_cast<ExpertActivation>(size(row, "activation")),
          .ranks = size(row, "experts_total") / size(row, "experts")};
}
// Of |simulated / measured - 1|, ascending.
double at_share(std::vector<double> errors, double share) {
  std::ranges::sort(errors);
  return errors.at(static_cast<std::size_t>(share * static_cast<double>(errors.size())));
}

// One expert, one token: a task of each layer, on two SMs, of which the second waits.
TEST(MoeTiles, TwoTasksOneAfterTheOther) {
  const MoeTileTimes times = fitted();
  const FusedMoeShape shape{.tokens = 1,
                            .hidden = 256,
                            .ffn = 256,
                            .experts = 1,
                            .topk = 1,
                            .activation = ExpertActivation::kRelu};
  const double routed = times.launch.value() + times.per_expert.value() + times.per_token.value() +
                        times.per_choice.value() + times.per_round.value() +
                        2 * 256 * 2 / times.send.value();
  const double bytes = 2 * 256 * 256 + times.x_bytes * 2 * 256 * 16;
  const double fetched = bytes * (1 / times.sm.value() + 1 / times.hbm.value());
  const double products = 4 * (times.step.value() + 16 * times.step_row.value());
  const double task = std::max(fetched, products) + 16 * times.write_row.value();
  const double tiles = routed + times.begin.value() + task + times.hop.value() + task;
  const MoeLayerTime found = simulate_moe_tiles(shape, times, MoeTileOrder::kBehind, 2);
  EXPECT_NEAR(found.routed.value(), routed, 1e-12);
  EXPECT_NEAR(found.tiles.value(), tiles, 1e-12);
  const double summed = 2 * 256 / times.sums.value();
  EXPECT_NEAR(found.duration.value(), tiles + summed + times.end.value(), 1e-12);
  const double worked = 2 * (products + 16 * times.write_row.value());
  EXPECT_NEAR(found.busy, worked / (2 * (tiles - routed)), 1e-9);
}

TEST(MoeTiles, WeightsComeNoFasterThanTheMemoryAndProductsThanTheUnits) {
  for (const std::int64_t tokens : {1, 64, 1024, 16384}) {
    for (const std::int64_t ranks : {1, 2, 4}) {
      const FusedMoeShape shape{
          .tokens = tokens, .hidden = 2048, .ffn = 1408, .experts = 64, .topk = 6, .ranks = ranks};
      const MoeLayerTime found = simulate_moe_tiles(shape, fitted());
      const double rows = static_cast<double>(tokens * shape.topk);
      const double active = std::min<double>(64.0 / static_cast<double>(ranks),
                                             rows * 0.6);  // of 64 alike, few rows meet
      EXPECT_GT(found.duration.value(), active * 3 * 2048 * 1408 * 2 / 4.8e12);
      EXPECT_GT(found.duration.value(), rows * 6 * 2048 * 1408 / 989e12);
      EXPECT_GT(found.busy, 0);
      EXPECT_LE(found.busy, 1);
      EXPECT_LT(found.routed, found.tiles);
      EXPECT_LT(found.tiles, found.duration);
    }
  }
}

TEST(MoeTiles, NearTheRowsThatItsTimesWereFittedTo) {
  std::vector<double> errors;
  for (std::int64_t row = 0; row < measured().num_rows(); ++row) {
    errors.push_back(std::abs(duration(shape_of(row)) / measured().time_s[row] - 1));
  }
  ASSERT_EQ(errors.size(), 132U);
  EXPECT_LT(at_share(errors, 0.5), 0.04);
  EXPECT_LT(at_share(errors, 0.95), 0.145);
}

// All results that come at the end have to go back and be added up then.
TEST(MoeTiles, LayerByLayerLeavesResultsToTheEnd) {
  const FusedMoeShape many{
      .tokens = 8192, .hidden = 2048, .ffn = 768, .experts = 128, .topk = 8, .ranks = 2};
  EXPECT_GT(duration(many, MoeTileOrder::kByLayer), 1.1 * duration(many));
  EXPECT_NEAR(duration(many, MoeTileOrder::kLongestFirst), duration(many), 0.02 * duration(many));
  for (const char* const text : {"behind", "by_layer", "longest_first"}) {
    EXPECT_EQ(to_text(parse_moe_tile_order(text)), text);
  }
  EXPECT_THROW(parse_moe_tile_order("fifo"), std::invalid_argument);
}

TEST(MoeTiles, AFasterGpuIsFasterAndTheH200IsItself) {
  const FusedMoeShape shape{
      .tokens = 4096, .hidden = 2048, .ffn = 1408, .experts = 64, .topk = 6, .ranks = 2};
  const auto on = [&](double flops, double bytes) {
    return simulate_moe_tiles(shape, moe_tile_times(FlopsPerSecond(flops), BytesPerSecond(bytes)))
        .duration.value();
  };
  EXPECT_EQ(on(989e12, 4.8e12), duration(shape));
  EXPECT_LT(on(2 * 989e12, 4.8e12), duration(shape));
  EXPECT_GT(on(989e12, 3.35e12), duration(shape));
}

TEST(MoeTiles, RefusesWhatIsNoLayer) {
  const FusedMoeShape whole{.tokens = 8, .experts = 8, .topk = 2, .ranks = 2};
  EXPECT_NO_THROW(simulate_moe_tiles(whole, fitted()));
  FusedMoeShape without = whole;
  without.tokens = 0;
  EXPECT_THROW(simulate_moe_tiles(without, fitted()), std::invalid_argument);
  FusedMoeShape uneven = whole;
  uneven.ranks = 3;
  EXPECT_THROW(simulate_moe_tiles(uneven, fitted()), std::invalid_argument);
  EXPECT_THROW(simulate_moe_tiles(whole, fitted(), MoeTileOrder::kBehind, 0),
               std::invalid_argument);
}

// Rows of one width of FFN left out of the table: tiles answer for them, and rows of the rest for
// theirs.
TEST(MoeTiles, PriceShapesThatNoRowsAreOf) {
  Device device = testing::node_spec().device;
  device.dense_flops = {{DType::kBf16, kPeak}};
  for (const std::int64_t ffn : {768, 2048, 7168}) {
    const KernelTable table(measured(), [&](std::int64_t row) { return size(row, "ffn") != ffn; });
    std::vector<double> errors;
    for (std::int64_t row = 0; row < measured().num_rows(); ++row) {
      const auto found = predict(table, device, device, DType::kBf16, measured().distribution[row],
                                 measured().row_dims(row));
      ASSERT_TRUE(found.has_value());
      if (size(row, "ffn") != ffn) {
        EXPECT_EQ(found->basis, Basis::kMeasured);
        continue;
      }
      EXPECT_EQ(found->rows, "its tiles, simulated");
      EXPECT_EQ(found->basis, Basis::kRoofline);
      EXPECT_NEAR(found->time.value(), duration(shape_of(row)), 1e-9 * found->time.value());
      errors.push_back(std::abs(found->time.value() / measured().time_s[row] - 1));
    }
    EXPECT_LT(at_share(errors, 0.5), 0.06) << ffn;
  }
}

}  // namespace
}  // namespace orrery
