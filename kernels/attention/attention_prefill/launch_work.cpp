#include "kernels/attention/attention_prefill/launch_work.h"

#include <algorithm>

#include "kernels/launch_gpu.h"

namespace orrery {
namespace {

using launch::ceil_div;

constexpr std::int64_t kStepKeys = 128;
constexpr double kPeak = 0.6 * launch::kPeak;            // that the prior counts on
constexpr double kBandwidth = 0.8 * launch::kBandwidth;  // likewise

// Of all heads and sequences.
std::int64_t num_tiles(const PrefillShape& shape) {
  return ceil_div(shape.query, shape.tile_rows) * shape.batch * shape.heads;
}

}  // namespace

double prefill_steps(const PrefillShape& shape, double end_steps, int num_sms) {
  std::int64_t sum = 0;
  std::int64_t most = 0;
  std::int64_t least = 0;
  const std::int64_t of_head = ceil_div(shape.query, shape.tile_rows);
  for (std::int64_t tile = 0; tile < of_head; ++tile) {
    const std::int64_t row = tile * shape.tile_rows;
    const std::int64_t position = shape.context + row;
    const std::int64_t first = std::max<std::int64_t>(position - shape.window + 1, 0);
    const std::int64_t last = position + std::min(shape.tile_rows, shape.query - row);
    const std::int64_t steps = ceil_div(last, kStepKeys) - first / kStepKeys;
    sum += steps;
    most = std::max(most, steps);
    least = tile == 0 ? steps : std::min(least, steps);
  }
  const double longest = static_cast<double>(most) + end_steps;
  const std::int64_t tiles = num_tiles(shape);
  if (tiles <= num_sms) return longest;
  // Tiles that are alike go in whole rounds; short ones fill what long ones leave.
  const auto heads = static_cast<double>(shape.batch * shape.heads);
  const double mean =
      (static_cast<double>(sum) + end_steps * static_cast<double>(of_head)) * heads / num_sms;
  const double rounds = static_cast<double>(tiles) / num_sms;
  const double unfilled = static_cast<double>(ceil_div(tiles, num_sms)) / rounds - 1;
  const double alike = (static_cast<double>(least) + end_steps) / longest;
  return std::max(longest, mean * (1 + unfilled * alike));
}

LaunchWork prefill_launch(const PrefillShape& shape, const PrefillCost& cost, Flops flops,
                          int num_sms) {
  if (num_tiles(shape) == 0 || flops.value() <= 0) return {};
  Seconds beside = cost.begin;
  if (num_tiles(shape) > num_sms) beside = beside + cost.second;
  const Seconds computing = cost.step * prefill_steps(shape, cost.end_steps, num_sms);
  return {.computed = computing.value() / (flops.value() / kPeak),
          .moved = kBandwidth / cost.rate,
          .beside = beside,
          .overlap = 4};
}

}  // namespace orrery
