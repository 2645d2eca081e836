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
#include "sim/cost/moe_capacity.h"
#include "tests/cost/cost_testing.h"

namespace orrery {
namespace {

constexpr FlopsPerSecond kPeak(989e12);

MoeTileTimes fitted() { return h200_moe_tile_times(); }
double duration(const FusedMoeShape& shape, MoeTileOrder order = MoeTileOrder::kBehind) {
  return simulate_moe_tiles(shape, h200_moe_tile_times(shape.is_fp8), {.order = order})
      .duration.value();
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
          .is_fp8 = measured().dtype[row] == DType::kFp8,
          .ranks = size(row, "experts_total") / size(row, "experts"),
          .shared = size(row, "shared")};
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
  const MoeLayerTime found = simulate_moe_tiles(shape, times, {.num_sms = 2});
  EXPECT_NEAR(found.routed.value(), routed, 1e-12);
  EXPECT_NEAR(found.tiles.value(), tiles, 1e-12);
  const double summed = 2 * 256 / times.sums.value();
  EXPECT_NEAR(found.duration.value(), tiles + summed + times.end.value(), 1e-12);
  const double worked = 2 * (products + 16 * times.write_row.value());
  EXPECT_NEAR(found.busy, worked / (2 * (tiles - routed)), 1e-9);
}

FusedMoeShape flash_layer(std::int64_t tokens, std::int64_t ranks = 1) {
  return {.tokens = tokens, .hidden = 2048, .ffn = 2048, .experts = 64, .topk = 2, .ranks = ranks};
}

// An SM has one task at a time, a task of the second layer begins when all of the first of its rows
// are there, and keeping them changes no time.
TEST(MoeTiles, TasksThatAreKeptFollowEachOtherOnTheirSms) {
  for (const MoeTileOrder order : {MoeTileOrder::kBehind, MoeTileOrder::kReadyFirst}) {
    for (const bool is_fp8 : {false, true}) {
      FusedMoeShape shape = flash_layer(1024, 2);
      shape.is_fp8 = is_fp8;
      const MoeTileTimes times = h200_moe_tile_times(is_fp8);
      const MoeLayerTime found =
          simulate_moe_tiles(shape, times, {.order = order, .keeps_tasks = true});
      const MoeLayerTime plain = simulate_moe_tiles(shape, times, {.order = order});
      EXPECT_EQ(found.duration, plain.duration);
      EXPECT_TRUE(plain.tasks.empty());
      std::map<std::int32_t, Seconds> free;   // by SM
      std::map<std::int32_t, Seconds> ready;  // by tile, the second layer
      std::map<std::int32_t, int> layers[2];  // by tile, tasks
      for (const MoeTaskSpan& task : found.tasks) {
        EXPECT_LE(free[task.sm], task.taken);
        EXPECT_LE(found.routed, task.taken);
        EXPECT_LE(task.taken, task.ready);
        EXPECT_LT(task.ready, task.end);
        free[task.sm] = task.end;
        ++layers[task.layer - 1][task.tile];
        if (task.layer == 1) ready[task.tile] = std::max(ready[task.tile], task.counted);
        if (task.layer == 2) {
          EXPECT_LE(ready[task.tile], task.ready);
        }
      }
      EXPECT_EQ(found.tasks.back().end, found.tiles);
      for (const auto& [tile, count] : layers[0]) {
        EXPECT_EQ(count, 16);  // of 128 columns of a gated layer
        EXPECT_EQ(layers[1][tile], 8);
      }
    }
  }
}

TEST(MoeTiles, NoSmWaitsWhileATaskIsReadyWhereItLooksForOne) {
  for (const std::int64_t tokens : {128, 1024}) {
    const MoeLayerTime found = simulate_moe_tiles(
        flash_layer(tokens), fitted(), {.order = MoeTileOrder::kReadyFirst, .keeps_tasks = true});
    Seconds last_of_first;  // of the first layer, that is taken
    for (const MoeTaskSpan& task : found.tasks) {
      if (task.layer == 1) last_of_first = std::max(last_of_first, task.taken);
    }
    // A task of the first layer is ready from the beginning.
    for (const MoeTaskSpan& task : found.tasks) {
      if (task.taken < last_of_first) {
        EXPECT_EQ(task.taken, task.ready);
      }
    }
  }
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

// Of |simulated / measured - 1|, of the rows that `takes` (bool(const FusedMoeShape&)).
template <typename Takes>
std::vector<double> errors_of(const Takes& takes) {
  std::vector<double> errors;
  for (std::int64_t row = 0; row < measured().num_rows(); ++row) {
    const FusedMoeShape shape = shape_of(row);
    if (!takes(shape)) continue;
    errors.push_back(std::abs(duration(shape) / measured().time_s[row] - 1));
  }
  return errors;
}
// Layers of the six models, none of which the times of bf16 were fitted to.
bool is_of_a_model(const FusedMoeShape& shape) { return shape.hidden > 2048 || shape.shared > 0; }

TEST(MoeTiles, NearTheRowsOfItsTable) {
  const auto bf16 =
      errors_of([](const FusedMoeShape& s) { return !s.is_fp8 && !is_of_a_model(s); });
  ASSERT_EQ(bf16.size(), 132U);
  EXPECT_LT(at_share(bf16, 0.5), 0.040);
  EXPECT_LT(at_share(bf16, 0.95), 0.145);  // those of four GPUs came after the fit
  const auto fp8 = errors_of([](const FusedMoeShape& s) { return s.is_fp8; });
  ASSERT_EQ(fp8.size(), 150U);
  EXPECT_LT(at_share(fp8, 0.5), 0.050);
  EXPECT_LT(at_share(fp8, 0.95), 0.15);
}

TEST(MoeTiles, NearLayersOfModelsThatItsTimesWereNotFittedTo) {
  const auto bf16 = errors_of([](const FusedMoeShape& s) { return !s.is_fp8 && is_of_a_model(s); });
  ASSERT_EQ(bf16.size(), 84U);
  EXPECT_LT(at_share(bf16, 0.5), 0.040);
  EXPECT_LT(at_share(bf16, 0.95), 0.125);
}

// All results that come at the end have to go back and be added up then.
TEST(MoeTiles, LayerByLayerLeavesResultsToTheEnd) {
  const FusedMoeShape many{
      .tokens = 8192, .hidden = 2048, .ffn = 768, .experts = 128, .topk = 8, .ranks = 2};
  EXPECT_GT(duration(many, MoeTileOrder::kByLayer), 1.1 * duration(many));
  EXPECT_NEAR(duration(many, MoeTileOrder::kLongestFirst), duration(many), 0.02 * duration(many));
  for (const char* const text : {"behind", "by_layer", "longest_first", "ready_first"}) {
    EXPECT_EQ(to_text(parse_moe_tile_order(text)), text);
  }
  EXPECT_THROW(parse_moe_tile_order("fifo"), std::invalid_argument);
}

// A shared expert is one more of each rank, whose rows stay: on one GPU it costs what an expert of
// as many rows does, on two less than one that is chosen by all.
TEST(MoeTiles, SharedExpertsAreExpertsWhoseRowsStay) {
  FusedMoeShape shape{.tokens = 2048, .hidden = 2048, .ffn = 2048, .experts = 16, .topk = 2};
  const double without = duration(shape);
  shape.shared = 1;
  const double one = duration(shape);
  shape.shared = 2;
  const double two = duration(shape);
  // 2,048 more rows to the 4,096 chosen ones.
  EXPECT_GT(one, 1.25 * without);
  EXPECT_LT(one, 1.6 * without);
  EXPECT_NEAR(two - one, one - without, 0.25 * (one - without));
  shape.ranks = 2;
  const double shared = duration(shape);
  shape.shared = 0;
  shape.topk = 4;
  EXPECT_LT(shared, duration(shape));
}

// A capacity that nothing exceeds changes nothing; from there on a layer that is bound by products
// takes less with less. On one rank an expert's rows are cut; on several those of each rank are.
TEST(MoeTiles, ACapacityTakesRowsAway) {
  for (const std::int64_t ranks : {1, 2, 4}) {
    FusedMoeShape shape{
        .tokens = 8192, .hidden = 2048, .ffn = 1408, .experts = 64, .topk = 6, .ranks = ranks};
    const double without = duration(shape);
    const MoeExchangeTimes exchange = moe_exchange_times(shape, fitted());
    shape.capacity_factor = 64.0 / 6;
    EXPECT_EQ(duration(shape), without);
    double before = without;
    for (const double factor : {1.0, 0.75, 0.5, 0.25}) {
      shape.capacity_factor = factor;
      EXPECT_LT(duration(shape), before) << ranks << " " << factor;
      before = duration(shape);
    }
    EXPECT_LT(before, 0.6 * without) << ranks;
    EXPECT_NEAR(moe_exchange_times(shape, fitted()).dispatch.value(), exchange.dispatch.value() / 4,
                1e-9 * exchange.dispatch.value());
  }
}

// A layer with a capacity that is never exceeded is priced as one without, to the bit; one that
// drops rows at its row's time, times what its tiles take over those without.
TEST(MoeCapacity, IsPricedByTheRowsOfTheLayerWithoutAndTheTilesOfBoth) {
  const Provider provider = Provider::load(std::filesystem::path(ORRERY_SOURCE_DIR) /
                                           "topologies/devices/h200-sxm/orrery");
  MachineSpec spec = testing::node_spec();
  spec.device.dense_flops = {{DType::kBf16, kPeak}, {DType::kFp8, 2 * kPeak}};
  spec.device.hbm_bandwidth = BytesPerSecond(4.8e12);
  spec.device.num_sms = 132;
  const Machine machine = make_machine(spec);
  const CostModel cost(machine, &provider, nullptr, {});
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    for (const std::int64_t experts : {64, 32}) {  // of a rank
      KernelOp whole{.kernel = "fused_moe",
                     .dtype = dtype,
                     .dims = {{"tokens", 8192},
                              {"hidden", 2048},
                              {"ffn", 2048},
                              {"experts_total", 64},
                              {"topk", 2},
                              {"activation", 0},
                              {"experts", experts},
                              {"shared", 0}}};
      const Estimate without = cost.kernel(whole);
      const auto with = [&](std::int64_t percent) {
        KernelOp op = whole;
        op.dims.push_back({"capacity_percent", percent});
        return op;
      };
      EXPECT_FALSE(may_drop(with(3200)));
      EXPECT_EQ(cost.kernel(with(3200)), without);
      Seconds before = without.time;
      for (const std::int64_t percent : {100, 75, 50}) {
        const Estimate found = cost.kernel(with(percent));
        EXPECT_LT(found.time, before) << percent;
        EXPECT_GT(found.time, 0.4 * without.time) << percent;
        EXPECT_EQ(found.basis, Basis::kRoofline);
        EXPECT_DOUBLE_EQ(found.time / without.time,
                         share_of_tiles(with(percent), machine.device()));
        before = found.time;
      }
    }
  }
}

TEST(MoeTiles, AFasterGpuIsFasterAndTheH200IsItself) {
  const FusedMoeShape shape{
      .tokens = 4096, .hidden = 2048, .ffn = 1408, .experts = 64, .topk = 6, .ranks = 2};
  const auto on = [&](double flops, double bytes) {
    return simulate_moe_tiles(shape,
                              moe_tile_times(false, FlopsPerSecond(flops), BytesPerSecond(bytes)))
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
  EXPECT_THROW(simulate_moe_tiles(whole, fitted(), {.num_sms = 0}), std::invalid_argument);
}

FusedMoeShape of_ranks(std::int64_t ranks, std::int64_t tokens = 8192) {
  return {.tokens = tokens, .hidden = 2048, .ffn = 2048, .experts = 64, .topk = 2, .ranks = ranks};
}
Seconds delayed(const FusedMoeShape& shape, const MoeDelays& delays, bool is_bulk = false) {
  return simulate_moe_tiles(shape, fitted(), {.delays = delays, .is_bulk_synchronous = is_bulk})
      .duration;
}

TEST(MoeTiles, NoDelayIsNoChange) {
  for (const std::int64_t ranks : {1, 2, 8}) {
    const MoeLayerTime on_time = simulate_moe_tiles(of_ranks(ranks), fitted());
    const MoeDelays none{.begin = {{0, Seconds(0)}}, .stall = {{ranks - 1, Seconds(0)}}};
    const MoeLayerTime found = simulate_moe_tiles(of_ranks(ranks), fitted(), {.delays = none});
    EXPECT_EQ(found.duration, on_time.duration);
    EXPECT_EQ(found.routed, on_time.routed);
    EXPECT_EQ(found.tiles, on_time.tiles);
    EXPECT_EQ(found.busy, on_time.busy);
  }
}

// All hear the counts of all, so all begin with the last; a bulk-synchronous layer waits twice.
TEST(MoeTiles, ARankThatBeginsLateMakesAllAsLateAndTwoNoLater) {
  const Seconds late(50e-6);
  for (const bool is_bulk : {false, true}) {
    const Seconds on_time = delayed(of_ranks(4), {}, is_bulk);
    const Seconds one = delayed(of_ranks(4), {.begin = {{2, late}}}, is_bulk);
    EXPECT_EQ(one, on_time + late);
    EXPECT_EQ(delayed(of_ranks(4), {.begin = {{0, late}, {2, late}, {3, late / 2}}}, is_bulk), one);
  }
  const Seconds on_time = delayed(of_ranks(4), {}, true);
  const Seconds twice = delayed(of_ranks(4), {.begin = {{1, late}}, .stall = {{3, late}}}, true);
  EXPECT_NEAR(twice.value(), (on_time + 2 * late).value(), 1e-12);
}

// At most as long as it stands; less by what runs meanwhile: tasks that have begun (of two rounds
// at most), and results that wait for the link. Beyond that each microsecond costs one.
TEST(MoeTiles, ARankThatStandsStillCostsWhatNothingHides) {
  for (const std::int64_t ranks : {1, 2, 4, 8}) {
    for (const std::int64_t tokens : {1024, 8192}) {
      const FusedMoeShape shape = of_ranks(ranks, tokens);
      const MoeLayerTime on_time = simulate_moe_tiles(shape, fitted());
      const Seconds still(1e-3);
      const Seconds one = delayed(shape, {.stall = {{0, still}}});
      const Seconds lost = one - on_time.duration;
      // Tasks of an expert: 16 and 8 columns of each of its tiles.
      const double tiles = 64.0 / static_cast<double>(ranks) *
                           std::ceil(static_cast<double>(tokens * ranks) / 32 / 160);
      const Seconds round = (on_time.tiles - on_time.routed) / std::ceil(tiles * 24 / 132);
      EXPECT_LE(lost, still + Seconds(1e-12));
      EXPECT_GE(lost, still - 2 * round - (on_time.duration - on_time.tiles));
      EXPECT_EQ(delayed(shape, {.stall = {{0, still}, {ranks - 1, still}}}), one);
      const Seconds more = delayed(shape, {.stall = {{0, 2 * still}}}) - on_time.duration;
      EXPECT_NEAR((more - lost).value(), still.value(), 1e-9);
    }
  }
}

// As TwoTasksOneAfterTheOther, on each of two ranks: all results, half of them to the other rank,
// go when both tasks are done and the other rank has come.
TEST(MoeTiles, BulkSynchronousResultsGoWhenAllAreThere) {
  const MoeTileTimes times = fitted();
  const FusedMoeShape shape{.tokens = 1,
                            .hidden = 256,
                            .ffn = 256,
                            .experts = 2,
                            .topk = 1,
                            .activation = ExpertActivation::kRelu,
                            .ranks = 2};
  const MoeTileOptions options{
      .num_sms = 2, .delays = {.stall = {{1, Seconds(7e-6)}}}, .is_bulk_synchronous = true};
  const MoeLayerTime found = simulate_moe_tiles(shape, times, options);
  const double exchange = 7e-6 + 2 * 256 / 2 / times.returned.value() + 512 / times.sums.value();
  const double end = times.end.value() + times.end_of_ranks.value();
  EXPECT_NEAR(found.duration.value(), found.tiles.value() + exchange + end, 1e-12);
}

TEST(MoeTiles, ExchangesThatWaitForAllAreSlower) {
  for (const std::int64_t ranks : {2, 4, 8}) {
    EXPECT_GT(delayed(of_ranks(ranks), {}, true), delayed(of_ranks(ranks), {}));
    // 8,192 * 2 rows of 4,096 bytes, all but one in `ranks` of them to others.
    const MoeExchangeTimes alone = moe_exchange_times(of_ranks(ranks), fitted());
    const auto of = static_cast<double>(ranks);
    const double remote = 8192 * 2 * 4096.0 * (of - 1) / of;
    EXPECT_DOUBLE_EQ(alone.dispatch.value(), remote / fitted().links.value());
    EXPECT_DOUBLE_EQ(alone.combine.value(), remote / fitted().returned.value());
  }
}

TEST(MoeTiles, RefusesDelaysThatCannotBe) {
  const auto says = [](const MoeDelays& delays, const std::string& words) {
    try {
      delayed(of_ranks(2), delays);
      ADD_FAILURE() << "nothing thrown, expected " << words;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  says({.begin = {{2, Seconds(1e-6)}}}, "begin of rank 2, expected 0 to 1");
  says({.stall = {{-1, Seconds(1e-6)}}}, "stall of rank -1, expected 0 to 1");
  says({.begin = {{1, Seconds(-1)}}}, "expected at least 0");
  says({.stall = {{1, Seconds(std::nan(""))}}}, "expected at least 0");
}

MoeNetwork network(std::int64_t hosts, std::int64_t queue = 0) {
  return {.hosts = hosts, .rate = BytesPerSecond(50e9), .latency = Seconds(3e-6), .queue = queue};
}
MoeLayerTime on_hosts(const FusedMoeShape& shape, const MoeNetwork& network) {
  return simulate_moe_tiles(shape, fitted(), {.network = network});
}

TEST(MoeTiles, OneHostIsAsWithoutANetwork) {
  for (const std::int64_t ranks : {1, 4, 8}) {
    const MoeLayerTime without = simulate_moe_tiles(of_ranks(ranks), fitted());
    const MoeLayerTime one = on_hosts(of_ranks(ranks), network(1, 1));
    EXPECT_EQ(one.duration, without.duration);
    EXPECT_EQ(one.routed, without.routed);
    EXPECT_EQ(one.tiles, without.tiles);
    EXPECT_EQ(one.busy, without.busy);
    EXPECT_EQ(one.most_outstanding, 0);
  }
}

// A rank on each of two hosts, two tokens on each, two experts, of which each has a row of each
// rank's. One task of the first layer, then one of each half of the second's columns at once: two
// messages of 512 bytes, of which the second waits for the first's acknowledgement.
TEST(MoeTiles, TwoHostsByHand) {
  MoeTileTimes times = fitted();
  times.hop = times.begin = Seconds(0);
  const FusedMoeShape shape{.tokens = 2,
                            .hidden = 512,
                            .ffn = 256,
                            .experts = 2,
                            .topk = 1,
                            .activation = ExpertActivation::kRelu,
                            .ranks = 2};
  const double latency = 3e-6;
  const auto simulated = [&](const MoeNetwork& network) {
    return simulate_moe_tiles(shape, times, {.num_sms = 2, .network = network});
  };
  const MoeLayerTime one = simulated({});
  const MoeLayerTime two = simulated(network(2, 1));
  // On one host the row of 1,024 bytes goes over the link while two tokens are read and two rows
  // written; on two over the wire, after the counts, which takes longer than these copies.
  const double copies = 4 * 1024 / times.send.value();
  const double counted = one.routed.value() - std::max(copies, 1024 / times.links.value());
  EXPECT_NEAR(two.routed.value(), counted + latency + 1024 / 50e9 + latency, 1e-12);
  EXPECT_NEAR((two.tiles - two.routed).value(), (one.tiles - one.routed).value(), 1e-12);
  const double wire = 512 / 50e9;
  const double there = two.tiles.value() + wire + 2 * latency + wire + latency;
  const double sums = 2 * 256 * 2 / times.sums.value();  // of the second tile
  const double end = times.end.value() + times.end_of_ranks.value();
  EXPECT_NEAR(two.duration.value(), there + sums + end, 1e-12);
  EXPECT_EQ(two.most_outstanding, 1);
  // With two places the second follows on the wire.
  const MoeLayerTime wide = simulated(network(2, 2));
  EXPECT_NEAR((two.duration - wide.duration).value(), 2 * latency, 1e-12);
}

TEST(MoeTiles, MorePlacesAreNoSlowerAndEnoughAreAsAnyNumber) {
  const FusedMoeShape shape = of_ranks(4, 2048);
  const MoeLayerTime any = on_hosts(shape, network(2));
  Seconds before = on_hosts(shape, network(2, 1)).duration;
  EXPECT_GT(before, 2 * any.duration);
  for (const std::int64_t queue : {4, 16, 64, 256}) {
    const MoeLayerTime found = on_hosts(shape, network(2, queue));
    EXPECT_LE(found.duration, before);
    EXPECT_EQ(found.most_outstanding, queue);
    before = found.duration;
  }
  EXPECT_EQ(on_hosts(shape, network(2, any.most_outstanding)).duration, any.duration);
}

// 2,048 * 2 rows of x, of which those of two in four ranks are for the other host, are posted at
// once, and take as long as the wire has bytes.
TEST(MoeTiles, RowsForOtherHostsFillTheQueueAndTheWire) {
  for (const std::int64_t tokens : {1024, 2048, 4096}) {
    const MoeLayerTime found = on_hosts(of_ranks(4, tokens), network(2));
    EXPECT_EQ(found.most_outstanding, tokens * 2 / 2);
    const double bytes = static_cast<double>(tokens) * 4096;  // of each way
    EXPECT_GT(found.routed.value(), bytes / 50e9);
    EXPECT_GT(found.duration.value(), 2 * bytes / 50e9);
  }
  EXPECT_GT(on_hosts(of_ranks(4), network(2)).duration, on_hosts(of_ranks(4), {}).duration);
  EXPECT_GT(on_hosts(of_ranks(4), network(4)).duration, on_hosts(of_ranks(4), network(2)).duration);
}

TEST(MoeTiles, BulkSynchronousResultsPassTheNetworkAtTheEnd) {
  const MoeTileOptions bulk{.is_bulk_synchronous = true, .network = network(2)};
  const MoeLayerTime found = simulate_moe_tiles(of_ranks(4), fitted(), bulk);
  EXPECT_GT(found.duration, on_hosts(of_ranks(4), network(2)).duration);
  // 8,192 rows of results of 4,096 bytes on the wire; rows of experts are drawn, to 1 %.
  EXPECT_GT((found.duration - found.tiles).value(), 0.99 * 8192 * 4096 / 50e9);
}

TEST(MoeTiles, RefusesNetworksThatCannotBe) {
  for (const std::int64_t hosts : {0, 3}) {
    EXPECT_THROW(on_hosts(of_ranks(4), network(hosts)), std::invalid_argument) << hosts;
  }
  EXPECT_THROW(on_hosts(of_ranks(4), {.hosts = 2}), std::invalid_argument);  // no rate
  EXPECT_THROW(on_hosts(of_ranks(4), network(2, -1)), std::invalid_argument);
}

// Rows of one width of FFN left out of the table: tiles answer for them, and rows of the rest for
// theirs. Of weights that are nearly as large, rows of these do (hidden 4,096, ffn 1,408 and
// 1,536).
TEST(MoeTiles, PriceShapesThatNoRowsAreOf) {
  Device device = testing::node_spec().device;
  device.dense_flops = {{DType::kBf16, kPeak}, {DType::kFp8, FlopsPerSecond(1979e12)}};
  for (const std::int64_t ffn : {768, 1408, 1536, 2048, 7168, 14336}) {
    const KernelTable table(measured(), [&](std::int64_t row) { return size(row, "ffn") != ffn; });
    std::vector<double> errors;
    for (std::int64_t row = 0; row < measured().num_rows(); ++row) {
      const auto found = predict(table, device, device, measured().dtype[row],
                                 measured().distribution[row], measured().row_dims(row));
      ASSERT_TRUE(found.has_value());
      if (size(row, "ffn") != ffn) {
        EXPECT_EQ(found->basis, Basis::kMeasured);
        continue;
      }
      const bool has_near_rows = size(row, "hidden") == 4096 && size(row, "experts_total") == 128;
      EXPECT_EQ(found->rows, has_near_rows ? "rows of its family" : "its tiles, simulated");
      EXPECT_EQ(found->basis, Basis::kRoofline);
      if (!has_near_rows) {
        EXPECT_NEAR(found->time.value(), duration(shape_of(row)), 1e-9 * found->time.value());
      }
      errors.push_back(std::abs(found->time.value() / measured().time_s[row] - 1));
    }
    EXPECT_LT(at_share(errors, 0.5), 0.06) << ffn;
  }
}

}  // namespace
}  // namespace orrery
