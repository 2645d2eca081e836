#pragma once

// Time of one kernel call from measured rows: which family answers, and on which device.

#include <optional>
#include <string_view>
#include <vector>

#include "sim/cost/kernel_table.h"
#include "sim/cost/roofline.h"
#include "sim/machine/machine.h"
#include "sim/timeline/timeline.h"

namespace orrery {

struct Prediction {
  Seconds time;
  Seconds measured;  // the same on the device of the rows
  // What such work takes there at the rate of the fastest row; 0 for a call that is a row.
  Seconds at_fastest_row;
  Basis basis = Basis::kRoofline;
  bool is_own_family = false;  // from rows of the call's own family, or of two that bracket it
  double spread = 0;           // of the samples of a measured row, interquartile range / median
  std::string_view rows;       // which rows these are, in words
};

// Sizes of a call's dims in the order of the kernel's spec. Throws std::invalid_argument naming one
// that is missing or too small.
std::vector<std::int64_t> ordered_dims(const KernelSpec& spec, const KernelOp& op);

// `dims` in the order of the kernel's spec, `distribution` an index into table.distributions().
//   * kMeasured: the call is a row of the table.
//   * kInterpolated: it lies between rows of its family, or of two families that differ only in
//     kv_heads, or in what is cached before a prefill, and bracket it, or the only row is host
//     bound and its fp8 twin stands in.
//   * kRoofline: outside; the work model times the ratio at the nearest measured place. Prefill
//     over cached context, when the table has none, takes the ratio of the square problem of equal
//     work. A call of our own kernels, where no rows of its way are on both sides, takes the ratio
//     of rows of its way with other KV heads. Of other families the nearest are averaged, the more
//     those whose axes cover the call; an MoE keeps its tokens per expert there, and the share of
//     the experts that the rank has. A layer of experts in one launch is simulated tile by tile
//     (sim/cost/moe_tiles.h) where no family is its own.
// A format that the table lacks is priced from the rows of the nearest one (kRoofline). Empty when
// the table has no rows of that distribution. The table was measured on `measured_on`;
// the answer is for `device`. Thread safe.
std::optional<Prediction> predict(const KernelTable& table, const Device& measured_on,
                                  const Device& device, DType dtype, int distribution,
                                  std::span<const std::int64_t> dims);

}  // namespace orrery
