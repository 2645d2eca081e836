#include "sim/cost/moe_tiles.h"

namespace orrery {

MoeTileTimes h200_moe_tile_times() {
  const auto us = [](double microseconds) { return Seconds(microseconds * 1e-6); };
  return {.launch = us(27.92),
          .per_expert = us(0.2137),
          .per_token = us(0.1001),
          .per_choice = us(0.1),
          .per_round = us(1.203),
          .per_rank = us(6.286),
          .send = BytesPerSecond(3.491e12),
          .links = BytesPerSecond(0.2879e12),
          .begin = us(0.02275),
          .step = us(0.3702),
          .step_row = us(0.004029),
          .write_row = us(0.00534),
          .gated = 2.342,
          .hop = us(0.01568),
          .hbm = BytesPerSecond(4.485e12),
          .sm = BytesPerSecond(0.2725e12),
          .x_bytes = 0.6389,
          .l2_bytes = 0.2046,
          .returned = BytesPerSecond(0.1954e12),
          .sums = BytesPerSecond(292.7e12),
          .end = us(0.06208),
          .end_of_ranks = us(2.67)};
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
  const auto rows = static_cast<double>(shape.tokens * shape.topk);
  constexpr double kElement = 2;  // bytes
  const Bytes remote(kElement * rows * static_cast<double>(shape.hidden) * (ranks - 1) / ranks);
  return {.dispatch = remote / times.links, .combine = remote / times.returned};
}

}  // namespace orrery
