#include "sim/cost/moe_tiles.h"

namespace orrery {

MoeTileTimes h200_moe_tile_times() {
  const auto us = [](double microseconds) { return Seconds(microseconds * 1e-6); };
  return {.launch = us(31.84),
          .per_expert = us(0.07351),
          .per_token = us(0.09981),
          .per_choice = us(0.1001),
          .per_round = us(1.2),
          .per_rank = us(8.263),
          .send = BytesPerSecond(3.502e12),
          .links = BytesPerSecond(0.3043e12),
          .begin = us(0.1458),
          .step = us(0.3337),
          .step_row = us(0.003883),
          .write_row = us(0.01868),
          .gated = 1.32,
          .hop = us(0.1482),
          .hbm = BytesPerSecond(4.409e12),
          .sm = BytesPerSecond(0.9205e12),
          .x_bytes = 0.5978,
          .l2_bytes = 0.2519,
          .returned = BytesPerSecond(0.1879e12),
          .sums = BytesPerSecond(7.07e12),
          .end = us(5.845),
          .end_of_ranks = us(0.5721)};
}

MoeTileTimes moe_tile_times(FlopsPerSecond peak, BytesPerSecond hbm_bandwidth) {
  constexpr FlopsPerSecond kH200Peak(989e12);  // data sheet, topologies/devices/h200-sxm
  constexpr BytesPerSecond kH200Memory(4.8e12);
  MoeTileTimes times = h200_moe_tile_times();
  times.step_row = times.step_row * (kH200Peak / peak);
  times.hbm = times.hbm * (hbm_bandwidth / kH200Memory);
  return times;
}

MoeExchangeTimes moe_exchange_times(const FusedMoeShape& shape, const MoeTileTimes& times) {
  const auto ranks = static_cast<double>(shape.ranks);
  const double rows = mean_rows(shape, shape.tokens);
  constexpr double kElement = 2;  // bytes
  const Bytes remote(kElement * rows * static_cast<double>(shape.hidden) * (ranks - 1) / ranks);
  return {.dispatch = remote / times.links, .combine = remote / times.returned};
}

}  // namespace orrery
