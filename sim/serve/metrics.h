#pragma once

// Serving metrics from request records and what the replicas summed up.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sim/serve/replica.h"
#include "sim/serve/serve.h"

namespace orrery {

// Mean, nearest-rank p50, p90, p95, p99 and maximum; zeros when empty. Sorts `values`.
Quantiles quantiles(std::vector<double>& values);

Seconds ttft(const RequestRecord& record);
Seconds e2e(const RequestRecord& record);
// Time per output token after the first; zero for requests with one output token.
Seconds tpot(const RequestRecord& record);
bool meets(const RequestRecord& record, const Slo& slo);

// Records that are not measured are left out, and the clock starts at the first arrival of those
// that are.
ServingMetrics serving_metrics(std::span<const RequestRecord> records,
                               std::span<const ReplicaTotals* const> replicas, const Slo& slo);

// Of transfers that ended, likewise.
DisaggregationMetrics disaggregation_metrics(std::span<const RequestRecord> records,
                                             std::span<const ReplicaTotals* const> prefill,
                                             std::span<const ReplicaTotals* const> decode);

// Adds what experts did on these replicas to `metrics`, where they are placed anew or their load
// changes.
void add_expert_metrics(std::span<const std::unique_ptr<Replica>> replicas,
                        ServingMetrics& metrics);

// Of replicas with a prefix cache of units of `blocks_per_unit` blocks; none without tiers.
std::optional<KvTierMetrics> kv_tier_metrics(const KvTiersConfig& config,
                                             std::int64_t blocks_per_unit,
                                             std::span<const ReplicaTotals* const> replicas);

}  // namespace orrery
