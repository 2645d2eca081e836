#pragma once

// Plans that differ only in limits of the engine which a service never comes near do the same,
// request by request, so that one of them is served for all.

#include <cstdint>
#include <optional>
#include <string>

#include "sim/scenario/scenario.h"
#include "sim/serve/serve.h"

namespace orrery {

// The most that a replica had at once. Of a service in which no request ever waited for a seat, for
// tokens of a step or for KV blocks, and none was preempted.
struct PeakUse {
  // Scheduled and not finished. Those that end when another begins are counted beside it, since
  // under asynchronous scheduling they still have their seats and blocks then.
  std::int64_t sequences = 0;
  std::int64_t prompt_tokens = 0;  // of prompts begun in one step
  std::int64_t longest = 0;        // prompt and output tokens of a request
};

// None for a service that a limit held up, and for those whose schedule depends on limits in other
// ways: shared prefixes (what is evicted depends on all blocks), held-back prompts (a share of the
// token budget), prefill and decode on replicas of their own, a warm-up, in which nobody counts who
// waits.
std::optional<PeakUse> peak_use(const Scenario& scenario, const Workload& workload,
                                const ServiceResult& result);

// Whether the limits of `scenario` are out of reach of such a service. Then the same requests are
// scheduled in the same steps: by induction over steps, each finds room for all that wait, as
// before.
bool is_out_of_reach(const Scenario& scenario, const PeakUse& use);

// Equal for scenarios that differ in max_num_seqs and max_num_batched_tokens alone.
std::string text_without_limits(const Scenario& scenario);

}  // namespace orrery
