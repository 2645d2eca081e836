#include "sim/serve/metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/serve/fast_forward.h"

namespace orrery {

Quantiles quantiles(std::vector<double>& values) {
  Quantiles result;
  if (values.empty()) return result;
  std::ranges::sort(values);
  const auto count = static_cast<double>(values.size());
  const auto at = [&](double share) {
    const double rank = std::max(std::ceil(share * count), 1.0);
    return values[static_cast<std::size_t>(rank) - 1];
  };
  result.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  result.p50 = at(0.5);
  result.p90 = at(0.9);
  result.p95 = at(0.95);
  result.p99 = at(0.99);
  result.max = values.back();
  return result;
}

Seconds ttft(const RequestRecord& record) { return record.first_token - record.arrival; }

Seconds e2e(const RequestRecord& record) { return record.finish - record.arrival; }

Seconds tpot(const RequestRecord& record) {
  if (record.output_tokens < 2) return Seconds(0);
  return (record.finish - record.first_token) / static_cast<double>(record.output_tokens - 1);
}

bool meets(const RequestRecord& record, const Slo& slo) {
  return ttft(record) <= slo.ttft && tpot(record) <= slo.tpot && e2e(record) <= slo.e2e;
}

namespace {

std::optional<RankMetrics> rank_metrics(std::span<const ReplicaTotals* const> replicas) {
  RankMetrics ranks;
  Seconds used;
  Seconds slowest;
  double num_steps = 0;
  for (const ReplicaTotals* totals : replicas) {
    const std::vector<Seconds>& own = totals->rank_busy;
    if (own.empty()) continue;
    ranks.wait.resize(std::max(ranks.wait.size(), own.size()));
    for (std::size_t i = 0; i < own.size(); ++i) {
      ranks.wait[i] += std::max(totals->busy - own[i], Seconds(0));  // but for rounding
      used += own[i] / static_cast<double>(own.size());
    }
    slowest += totals->busy;
    num_steps += static_cast<double>(totals->num_steps);
  }
  if (ranks.wait.empty()) return std::nullopt;
  if (slowest > Seconds(0)) ranks.balance = used / slowest;
  for (Seconds& wait : ranks.wait) wait = num_steps > 0 ? wait / num_steps : Seconds(0);
  return ranks;
}

// None where nothing was verified.
std::optional<SpeculationMetrics> speculation_metrics(
    std::span<const ReplicaTotals* const> replicas, Seconds busy) {
  SpeculationMetrics metrics;
  VerifiedDrafts all;
  for (const ReplicaTotals* totals : replicas) {
    all.num_verifications += totals->verified.num_verifications;
    all.num_tokens += totals->verified.num_tokens;
    metrics.draft += totals->draft;
  }
  if (all.num_verifications == 0) return std::nullopt;
  metrics.acceptance_length =
      static_cast<double>(all.num_tokens) / static_cast<double>(all.num_verifications);
  if (busy > Seconds(0)) metrics.draft_share = metrics.draft / busy;
  return metrics;
}

// Of the time from `begin`, when the first measured request came, that over which rates are: until
// the first request of the drain came, or where none follows (or all came at once) `duration`.
Seconds rate_time(std::span<const RequestRecord> records, Seconds begin, Seconds duration) {
  if (records.empty() || records.back().is_measured) return duration;
  const auto last = std::ranges::find_if(records.rbegin(), records.rend(),
                                         [](const RequestRecord& r) { return r.is_measured; });
  const Seconds window = last.base()->arrival - begin;  // of the record behind it
  return window > Seconds(0) ? window : duration;
}

}  // namespace

ServingMetrics serving_metrics(std::span<const RequestRecord> records,
                               std::span<const ReplicaTotals* const> replicas, const Slo& slo) {
  ServingMetrics metrics;
  std::vector<double> ttfts;
  std::vector<double> tpots;
  std::vector<double> e2es;
  for (std::vector<double>* values : {&ttfts, &tpots, &e2es}) values->reserve(records.size());
  std::int64_t num_good = 0;
  Seconds begin(1e300);
  Seconds end(0);
  for (const RequestRecord& record : records) {
    if (!record.is_measured) continue;
    ++metrics.num_requests;
    metrics.num_preemptions += record.num_preemptions;
    metrics.prompt_tokens += record.prompt_tokens;
    metrics.output_tokens += record.output_tokens;
    metrics.cached_tokens += record.cached_tokens;
    ttfts.push_back(ttft(record).value());
    e2es.push_back(e2e(record).value());
    if (record.output_tokens >= 2) tpots.push_back(tpot(record).value());
    num_good += meets(record, slo) ? 1 : 0;
    begin = std::min(begin, record.arrival);
    end = std::max(end, record.finish);
  }
  metrics.ttft_s = quantiles(ttfts);
  metrics.tpot_s = quantiles(tpots);
  metrics.e2e_s = quantiles(e2es);
  if (metrics.num_requests > 0) {
    metrics.duration = end - begin;
    const double seconds = rate_time(records, begin, metrics.duration).value();
    metrics.output_tokens_per_s = static_cast<double>(metrics.output_tokens) / seconds;
    metrics.requests_per_s = static_cast<double>(metrics.num_requests) / seconds;
    metrics.goodput_requests_per_s = static_cast<double>(num_good) / seconds;
    metrics.slo_attainment =
        static_cast<double>(num_good) / static_cast<double>(metrics.num_requests);
  }

  LatencyHistogram itl;
  Seconds busy;
  double utilisation = 0;
  double batches = 0;
  BasisSeconds basis;
  for (const ReplicaTotals* totals : replicas) {
    itl.merge(totals->itl);
    busy += totals->busy;
    utilisation += totals->kv_utilisation_seconds;
    metrics.kv_utilisation_max = std::max(metrics.kv_utilisation_max, totals->kv_utilisation_max);
    metrics.num_steps += totals->num_steps;
    batches += totals->batch_steps;
    basis = sum(basis, totals->basis);
    metrics.work_energy += totals->energy;
  }
  metrics.ranks = rank_metrics(replicas);
  metrics.speculation = speculation_metrics(replicas, busy);
  metrics.slo = check_slo(slo, records, metrics);
  metrics.itl_s = itl.quantiles();
  if (busy > Seconds(0)) metrics.kv_utilisation_mean = utilisation / busy.value();
  if (metrics.duration > Seconds(0) && !replicas.empty()) {
    metrics.busy = busy / metrics.duration / static_cast<double>(replicas.size());
  }
  if (metrics.num_steps > 0) metrics.mean_batch = batches / static_cast<double>(metrics.num_steps);
  metrics.basis = shares(basis);
  return metrics;
}

namespace {

SideMetrics side_metrics(std::span<const ReplicaTotals* const> replicas, Seconds duration) {
  SideMetrics side{.num_replicas = static_cast<int>(replicas.size())};
  Seconds busy;
  double utilisation = 0;
  double batches = 0;
  for (const ReplicaTotals* totals : replicas) {
    busy += totals->busy;
    utilisation += totals->kv_utilisation_seconds;
    batches += totals->batch_steps;
    side.kv_utilisation_max = std::max(side.kv_utilisation_max, totals->kv_utilisation_max);
    side.num_steps += totals->num_steps;
    side.work_energy += totals->energy;
  }
  if (busy > Seconds(0)) side.kv_utilisation_mean = utilisation / busy.value();
  if (duration > Seconds(0)) side.busy = busy / duration / side.num_replicas;
  if (side.num_steps > 0) side.mean_batch = batches / static_cast<double>(side.num_steps);
  return side;
}

}  // namespace

DisaggregationMetrics disaggregation_metrics(std::span<const RequestRecord> records,
                                             std::span<const ReplicaTotals* const> prefill,
                                             std::span<const ReplicaTotals* const> decode) {
  DisaggregationMetrics metrics;
  std::vector<double> transfers;
  std::vector<double> waits;
  std::vector<double> second_tokens;
  std::vector<double> exposed;
  Seconds all;
  Seconds waited_for;
  Seconds begin(1e300);
  Seconds end(0);
  for (const RequestRecord& record : records) {
    if (!record.is_measured) continue;
    begin = std::min(begin, record.arrival);
    end = std::max(end, record.finish);
    if (record.decode_replica < 0) continue;
    const Seconds transfer = record.transfer_end - record.transfer_start;
    ++metrics.num_transfers;
    metrics.transferred += record.transfer_bytes;
    transfers.push_back(transfer.value());
    // Layers may have begun to move before.
    waits.push_back(std::max(record.transfer_start - record.prefill_end, Seconds(0)).value());
    second_tokens.push_back((record.second_token - record.prefill_end).value());
    exposed.push_back(record.exposed_transfer.value());
    all += transfer;
    waited_for += std::min(record.exposed_transfer, transfer);
  }
  metrics.transfer_s = quantiles(transfers);
  metrics.wait_s = quantiles(waits);
  metrics.second_token_s = quantiles(second_tokens);
  metrics.exposed_s = quantiles(exposed);
  if (all > Seconds(0)) metrics.exposed_share = waited_for / all;
  metrics.prefill = side_metrics(prefill, end - begin);
  metrics.decode = side_metrics(decode, end - begin);
  return metrics;
}

void add_expert_metrics(std::span<const std::unique_ptr<Replica>> replicas,
                        ServingMetrics& metrics) {
  double num_steps = 0;
  double balance_steps = 0;
  const auto count = [&](const ExpertHistory& history) {
    num_steps += static_cast<double>(history.num_steps);
    balance_steps += history.balance_steps;
  };
  if (metrics.experts) std::ranges::for_each(metrics.experts->replicas, count);
  for (const std::unique_ptr<Replica>& replica : replicas) {
    const ExpertHistory* const history = replica->experts();
    if (history == nullptr) continue;
    if (!metrics.experts) metrics.experts.emplace();
    ExpertMetrics& experts = *metrics.experts;
    experts.replicas.push_back(*history);
    experts.replicas.back().replica = replica->index();
    count(*history);
    experts.num_rebalances += std::ssize(history->rebalances);
    for (const Rebalance& rebalance : history->rebalances) {
      experts.moved += rebalance.moved;
      experts.held_up += rebalance.held_up;
    }
  }
  if (metrics.experts && num_steps > 0) metrics.experts->balance = balance_steps / num_steps;
}

std::optional<KvTierMetrics> kv_tier_metrics(const KvTiersConfig& config,
                                             std::int64_t blocks_per_unit,
                                             std::span<const ReplicaTotals* const> replicas) {
  if (config.tiers.empty()) return std::nullopt;
  const Bytes unit = config.block * static_cast<double>(blocks_per_unit);
  KvTierMetrics metrics;
  Seconds busy;
  for (const ReplicaTotals* totals : replicas) {
    busy += totals->busy;
    metrics.exposed += totals->exposed_blocks;
    metrics.recomputed_tokens += totals->recomputed_tokens;
  }
  if (busy > Seconds(0)) metrics.exposed_share = metrics.exposed / busy;
  for (std::size_t i = 0; i < config.tiers.size(); ++i) {
    const KvTier& tier = config.tiers[i];
    TierCounts counts;
    std::int64_t held = 0;
    for (const ReplicaTotals* totals : replicas) {
      counts = sum(counts, totals->tiers[i]);
      held += totals->tier_units[i];
    }
    const double stores = tier.is_shared ? 1 : static_cast<double>(replicas.size());
    metrics.tiers.push_back({.name = tier.name,
                             .hit_tokens = counts.hit_tokens,
                             .loaded = unit * static_cast<double>(counts.num_loaded),
                             .written = unit * static_cast<double>(counts.num_written),
                             .evicted = unit * static_cast<double>(counts.num_evicted),
                             .held = unit * static_cast<double>(held),
                             .capacity = tier.capacity * stores});
  }
  return metrics;
}

}  // namespace orrery
