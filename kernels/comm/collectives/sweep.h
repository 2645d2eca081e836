#pragma once

// Measured tables of collectives, in the form that the simulator reads
// (topologies/<machine>/<collective>.csv).

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/harness/measure.h"
#include "sim/plan/plan.h"

namespace orrery {

struct CollectiveRow {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::string implementation;  // "nccl", "orrery", "orrery_one_shot", "orrery_two_shot"
  std::string version;         // NCCL's; empty for ours
  LaunchMode mode = LaunchMode::kGraph;
  DType dtype = DType::kBf16;
  int num_gpus = 0;
  std::int64_t bytes = 0;  // the whole buffer (kernels/comm/collectives/collective.h)
  Measurement time;
};

// Every collective in bf16 among `devices`, graph and eager, at powers of two from 256 bytes to
// `most_bytes`, and half-way between from 64 KiB to 64 MiB; all_reduce by NCCL and by ours,
// interleaved, and "orrery" as what choose_all_reduce() takes. send_recv among two devices only.
// Calls `row` with each.
void sweep_collectives(std::span<const int> devices, std::int64_t most_bytes,
                       const std::function<void(const CollectiveRow&)>& row);

}  // namespace orrery
