#pragma once

// Serving metrics from request records and what the replicas summed up.

#include <cstdint>
#include <span>
#include <vector>

#include "sim/serve/replica.h"
#include "sim/serve/serve.h"

namespace orrery {

// Mean, nearest-rank p50, p90, p99 and maximum; zeros when empty. Sorts `values`.
Quantiles quantiles(std::vector<double>& values);

Seconds ttft(const RequestRecord& record);
Seconds e2e(const RequestRecord& record);
// Time per output token after the first; zero for requests with one output token.
Seconds tpot(const RequestRecord& record);
bool meets(const RequestRecord& record, const Slo& slo);

// The first `num_warmup` records count neither as requests nor as tokens, and the clock starts at
// the first arrival after them. ITL, KV use and the basis are those of the whole run.
ServingMetrics serving_metrics(std::span<const RequestRecord> records, std::int64_t num_warmup,
                               std::span<const ReplicaTotals* const> replicas, const Slo& slo);

// Of transfers that ended, those of the first `num_warmup` requests left out; what the sides do is
// of the whole run.
DisaggregationMetrics disaggregation_metrics(std::span<const RequestRecord> records,
                                             std::int64_t num_warmup,
                                             std::span<const ReplicaTotals* const> prefill,
                                             std::span<const ReplicaTotals* const> decode);

}  // namespace orrery
