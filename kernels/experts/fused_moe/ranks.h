#pragma once

// fused_moe on several GPUs by itself: checks and times.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/experts/fused_moe/shape.h"
#include "kernels/harness/difference.h"
#include "kernels/harness/measurement.h"

namespace orrery {

struct FusedMoeReport {
  std::string what;  // "fused_moe tokens 300, 0 hidden 256 ..."
  std::vector<Difference> differences;
  std::vector<std::string> faults;  // what else was wrong
  [[nodiscard]] bool passes() const;
};

// On `devices`, which two or more ranks have or share: ranks of unlike tokens, none included; all
// tokens to one expert; launches behind others of another routing; graphs replayed with changing
// operands; a rank that does not come. Each against the double-precision reference. `report` is
// called with each as it is done.
void check_fused_moe_ranks(std::span<const int> devices,
                           const std::function<void(const FusedMoeReport&)>& report);

// Time of a layer with shape.tokens on each of `devices` (one, or several), of graphs of launches
// with weights of their own, so that none are in the L2 cache where a set of them exceeds a part of
// it.
Measurement time_fused_moe_ranks(std::span<const int> devices, const FusedMoeShape& shape);

}  // namespace orrery
