#pragma once

// fused_moe on several GPUs by itself: checks and times.

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/comm/processes/process_group.h"
#include "kernels/experts/fused_moe/shape.h"
#include "kernels/experts/fused_moe/trace.h"
#include "kernels/harness/difference.h"
#include "kernels/harness/measurement.h"
#include "sim/units/units.h"

namespace orrery {

struct FusedMoeReport {
  std::string what;  // "fused_moe tokens 300, 0 hidden 256 ..."
  std::vector<Difference> differences;
  std::vector<std::string> faults;  // what else was wrong
  [[nodiscard]] bool passes() const;
};

// On `devices`, which two or more ranks have or share: ranks of unlike tokens, none included; all
// tokens to one expert; experts of equal scores; a token without numbers; launches behind others of
// another routing; graphs replayed with changing operands; a rank that does not come. Each against
// the double-precision reference. `report` is called with each as it is done.
void check_fused_moe_ranks(std::span<const int> devices,
                           const std::function<void(const FusedMoeReport&)>& report);

// A few small ones of these, behind one of each format of each device by itself: for tools that
// look at every access.
void check_small_fused_moe_ranks(std::span<const int> devices,
                                 const std::function<void(const FusedMoeReport&)>& report);

// The same of ranks that are processes of their own, of which this one is on `device`: fewer
// replays, and no rank that does not come. All processes make the call; `report` gets what is of
// this one's rank.
void check_fused_moe_process(const ProcessGroup& processes, int device,
                             const std::function<void(const FusedMoeReport&)>& report);

// Replays a layer over processes until one of them has ended, which the others are to notice:
// throws std::runtime_error with what their launches have waited for in vain, and who has ended.
// Calls `ready` when all are about to replay. A rank that is to be lost without a launch has
// `launches` false. Nobody waits for longer than 20 s. The message has kWaitedTooLong in it where
// launches took longer than their own watch allows.
inline constexpr std::string_view kWaitedTooLong = "waited too long:";
void replay_until_rank_is_lost(const ProcessGroup& processes, int device, bool launches,
                               const std::function<void()>& ready);

// Time of a layer with shape.tokens on each of `devices` (one, or several), of graphs of launches
// with weights of their own, so that none are in the L2 cache where a set of them exceeds a part of
// it.
Measurement time_fused_moe_ranks(std::span<const int> devices, const FusedMoeShape& shape);

// When blocks did what in a launch behind others, on each of `devices`, which it has to itself; the
// one of several that took the median time, and how long the launches took, traced and not, between
// events around each. Throws std::runtime_error as fused_moe_spans does.
struct FusedMoeTraced {
  std::vector<std::vector<FusedMoeSpan>> ranks;
  Seconds traced;
  Seconds untraced;  // likewise the median
};
FusedMoeTraced trace_fused_moe_ranks(std::span<const int> devices, const FusedMoeShape& shape);

// A traced launch on such devices against the reference, and its trace: each task once, its times
// in order.
void check_traced_fused_moe(std::span<const int> devices,
                            const std::function<void(const FusedMoeReport&)>& report);

}  // namespace orrery
