#include "sim/cost/moe_capacity.h"

#include <algorithm>
#include <vector>

#include "kernels/experts/fused_moe/buffers.h"
#include "kernels/kernel_spec.h"
#include "sim/cost/moe_tiles.h"
#include "sim/cost/roofline.h"

namespace orrery {

bool may_drop(const KernelOp& op) {
  if (routed_role(op) != RoutedRole::kLayer) return false;
  const FusedMoeShape shape = fused_moe_shape(op.dtype, op.dims);
  return capacity_of(shape, shape.tokens) < shape.tokens;
}

KernelOp without_capacity(KernelOp op) {
  std::erase_if(op.dims, [](const Dim& dim) { return dim.name == "capacity_percent"; });
  return op;
}

double share_of_tiles(const KernelOp& op, const Device& device, std::span<const double> choices) {
  FusedMoeShape shape = fused_moe_shape(op.dtype, op.dims);
  const MoeTileTimes times =
      moe_tile_times(shape.is_fp8, peak_flops(device, op.dtype), device.hbm_bandwidth);
  MoeTileOptions options{.num_sms = std::max(1, device.num_sms),
                         .choices = {choices.begin(), choices.end()}};
  const Seconds with = simulate_moe_tiles(shape, times, options).duration;
  shape.capacity_factor = 0;
  // Alike, in the order of tasks that unlike ones are in.
  std::ranges::fill(options.choices,
                    static_cast<double>(shape.topk) / static_cast<double>(shape.experts));
  const Seconds without = simulate_moe_tiles(shape, times, options).duration;
  return choices.empty() ? std::min(1.0, with / without) : with / without;
}

}  // namespace orrery
