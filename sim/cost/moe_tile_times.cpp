#include "sim/cost/moe_tiles.h"

namespace orrery {

MoeTileTimes h200_moe_tile_times(bool is_fp8) {
  const auto us = [](double microseconds) { return Seconds(microseconds * 1e-6); };
  MoeTileTimes times{.launch = us(31.84),
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
  if (is_fp8) {
    times.per_choice = us(0.09864);
    times.links = BytesPerSecond(0.299e12);
    times.step = us(0.3783);
    times.step_row = us(0.004337);
    times.write_row = us(0.03193);
    times.quantize_row = us(0.009316);
    times.hbm = BytesPerSecond(3.983e12);
    times.x_bytes = 0.6714;
    times.l2_bytes = 0.2569;
    times.returned = BytesPerSecond(0.2462e12);
  }
  return times;
}

MoeTileTimes moe_tile_times(bool is_fp8, FlopsPerSecond peak, BytesPerSecond hbm_bandwidth) {
  // Data sheet, topologies/devices/h200-sxm.
  const FlopsPerSecond of_h200(is_fp8 ? 1979e12 : 989e12);
  constexpr BytesPerSecond kH200Memory(4.8e12);
  MoeTileTimes times = h200_moe_tile_times(is_fp8);
  times.step_row = times.step_row * (of_h200 / peak);
  times.hbm = times.hbm * (hbm_bandwidth / kH200Memory);
  return times;
}

MoeExchangeTimes moe_exchange_times(const FusedMoeShape& shape, const MoeTileTimes& times) {
  const auto ranks = static_cast<double>(shape.ranks);
  const double rows = mean_rows(shape, shape.tokens);
  const Bytes remote(2 * rows * static_cast<double>(shape.hidden) * (ranks - 1) / ranks);
  return {.dispatch = remote / (shape.is_fp8 ? 2 : 1) / times.links,
          .combine = remote / times.returned};
}

}  // namespace orrery
