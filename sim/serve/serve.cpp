#include "sim/serve/serve.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <exception>
#include <functional>
#include <iterator>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sim/serve/metrics.h"
#include "sim/serve/replica.h"
#include "sim/serve/router.h"
#include "sim/serve/service_checks.h"
#include "sim/serve/service_loop.h"
#include "sim/serve/sessions.h"
#include "sim/serve/step_store.h"

namespace orrery {
namespace {

// What the workload asks of the engine instead of what `config` says.
ServiceConfig adapted(ServiceConfig config, const Workload& workload) {
  if (workload.is_offline) config.front_end = {};
  if (!workload.is_cold) config.front_end.cold_start = Seconds(0);
  if (!workload.is_static_batch) return config;
  EngineConfig& engine = config.engine;
  engine.max_num_seqs = static_cast<std::int64_t>(workload.requests.size());
  engine.max_num_batched_tokens = 0;
  std::int64_t longest = 0;
  for (const Request& request : workload.requests) {
    engine.max_num_batched_tokens += request.prompt_tokens;
    longest = std::max(
        longest, request.prompt_tokens + request.output_tokens - 1 + engine.speculation.num_tokens);
  }
  engine.max_num_batched_tokens = std::max(
      engine.max_num_batched_tokens, engine.max_num_seqs * (1 + engine.speculation.num_tokens));
  engine.kv_admission = KvAdmission::kPrompt;
  engine.enable_chunked_prefill = true;
  const std::int64_t sequences =
      (engine.max_num_seqs + config.num_replicas - 1) / config.num_replicas;
  const std::int64_t blocks =
      sequences * ((longest + engine.block_size - 1) / engine.block_size + config.state_blocks);
  require(blocks <= config.num_kv_blocks,
          "a static batch of " + std::to_string(sequences) + " sequences needs up to " +
              std::to_string(blocks) + " KV blocks, more than the " +
              std::to_string(config.num_kv_blocks) + " that one replica holds");
  return config;
}

// Replicas that share nothing but the order of arrivals, side by side.
void run_side_by_side(Replicas& replicas, const Workload& workload, const ServiceConfig& config,
                      std::span<RequestRecord> records, ProgressCounter& progress) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    try {
      for (std::size_t i = next++; i < replicas.size(); i = next++) {
        std::vector<std::int64_t> arrivals;
        for (std::size_t idx = i; idx < workload.requests.size(); idx += replicas.size()) {
          arrivals.push_back(static_cast<std::int64_t>(idx));
        }
        Replicas alone;
        alone.push_back(std::move(replicas[i]));
        ServiceLoop(workload, records, alone, RouterKind::kRoundRobin, progress).run(arrivals);
        replicas[i] = std::move(alone.front());
      }
    } catch (...) {  // the caller's thread throws it again
      const std::scoped_lock lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 1; i < config.num_threads; ++i) threads.emplace_back(work);
    work();
  }
  if (error) std::rethrow_exception(error);
}

// Replicas are busy for a part of the time that there are some.
void add_autoscaling_metrics(const Fleet& fleet, std::span<const ReplicaTotals* const> totals,
                             ServiceResult& result) {
  Seconds end;
  for (const RequestRecord& record : result.requests) end = std::max(end, record.finish);
  result.metrics.autoscaling = fleet.autoscaler.metrics(end);
  Seconds busy;
  for (const ReplicaTotals* of : totals) busy += of->busy;
  const double replicas = result.metrics.autoscaling->mean_replicas();
  if (result.metrics.duration > Seconds(0) && replicas > 0) {
    result.metrics.busy = busy / result.metrics.duration / replicas;
  }
}

}  // namespace

void add_load_metrics(const Workload& workload, std::span<const ReplicaTotals* const> totals,
                      ServiceResult& result) {
  if (!workload.turns.empty()) result.metrics.sessions = session_metrics(result.requests);
  if (!arrives_by_itself(workload)) return;
  if (workload.turns.empty()) {
    result.metrics.load = load_metrics(result.requests, totals);
    return;
  }
  std::vector<RequestRecord> by_arrival = result.requests;
  std::ranges::stable_sort(by_arrival, {}, &RequestRecord::arrival);
  result.metrics.load = load_metrics(by_arrival, totals);
}

bool arrives_by_itself(const Workload& workload) {
  return workload.closed_loop_concurrency == 0 && !workload.is_offline && !workload.is_static_batch;
}

ServiceConfig checked_config(const ServiceConfig& given, const Workload& workload) {
  check_service(given, workload);
  const ServiceConfig config = adapted(given, workload);
  check_requests(workload, config);
  return config;
}

std::vector<RequestRecord> new_records(const Workload& workload) {
  std::vector<RequestRecord> records(workload.requests.size());
  const std::int64_t end = std::ssize(workload.requests) - workload.drain_requests;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Request& request = workload.requests[i];
    records[i].id = request.id;
    if (!workload.turns.empty()) {
      records[i].session = workload.turns[i].session;
      records[i].turn = workload.turns[i].turn;
    }
    records[i].prompt_tokens = request.prompt_tokens;
    records[i].output_tokens = request.output_tokens;
    records[i].is_measured = request.id >= workload.warmup_requests && request.id < end;
  }
  return records;
}

void for_each_step(const ServiceResult& result,
                   const std::function<void(const StepRecord&)>& visit) {
  if (result.step_store) {
    result.step_store->for_each(visit);
  } else {
    std::ranges::for_each(result.steps, visit);
  }
}

ServiceResult serve(const Workload& workload, const ServiceConfig& given, const Slo& slo,
                    const std::function<std::unique_ptr<StepBackend>(int replica)>& make_backend,
                    const Progress& progress) {
  const ServiceConfig config = checked_config(given, workload);
  ServiceResult result;
  result.step_store = config.step_store;
  result.requests = new_records(workload);
  const std::int64_t blocks_per_unit = workload.hash_block_tokens / config.engine.block_size;
  SharedTiers shared_tiers(config.kv_tiers, blocks_per_unit);
  Replicas replicas;
  const auto make_replica = [&](std::size_t i) {
    const int index = static_cast<int>(i);
    return std::make_unique<Replica>(index, config, blocks_per_unit, workload.requests,
                                     result.requests, make_backend(index), ReplicaRole::kWhole,
                                     &shared_tiers);
  };
  const auto most = static_cast<std::size_t>(config.autoscaling ? config.autoscaling->max_replicas
                                                                : config.num_replicas);
  replicas.reserve(most);
  for (std::size_t i = 0; i < most; ++i) replicas.push_back(make_replica(i));
  std::optional<Fleet> fleet;

  ProgressCounter counter(progress, static_cast<std::int64_t>(workload.requests.size()));
  const bool shares_tiers =
      std::ranges::any_of(config.kv_tiers.tiers, [](const KvTier& tier) { return tier.is_shared; });
  if (router_policy(config.router).is_load_blind && workload.closed_loop_concurrency == 0 &&
      workload.turns.empty() && !config.autoscaling && !shares_tiers) {
    run_side_by_side(replicas, workload, config, result.requests, counter);
  } else {
    std::vector<std::int64_t> all(workload.requests.size());
    std::iota(all.begin(), all.end(), 0);
    ServiceLoop loop(workload, result.requests, replicas, config.router, counter);
    if (config.autoscaling) {
      fleet.emplace(Autoscaler(*config.autoscaling, config.num_replicas), make_replica);
      loop.scale(*fleet, config.num_replicas);
    }
    loop.run(all);
    if (fleet) std::ranges::move(fleet->gone, std::back_inserter(replicas));
  }

  std::vector<const ReplicaTotals*> totals;
  totals.reserve(replicas.size());
  for (const std::unique_ptr<Replica>& replica : replicas) {
    assert(replica->is_drained());
    totals.push_back(&replica->totals());
    result.steps.insert(result.steps.end(), replica->steps().begin(), replica->steps().end());
  }
  sort_steps(result.steps);
  result.metrics = serving_metrics(result.requests, totals, slo);
  add_load_metrics(workload, totals, result);
  add_expert_metrics(replicas, result.metrics);
  if (fleet) add_autoscaling_metrics(*fleet, totals, result);
  if (blocks_per_unit > 0) {
    result.metrics.kv_tiers = kv_tier_metrics(config.kv_tiers, blocks_per_unit, totals);
  }
  return result;
}

}  // namespace orrery
