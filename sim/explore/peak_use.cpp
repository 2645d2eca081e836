#include "sim/explore/peak_use.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "sim/scenario/assembly.h"

namespace orrery {

namespace {

// Of one replica, at once.
std::int64_t most_sequences(const std::vector<RequestRecord>& records, std::size_t num_replicas) {
  std::vector<std::vector<std::pair<Seconds, int>>> changes(num_replicas);
  for (const RequestRecord& record : records) {
    auto& own = changes.at(static_cast<std::size_t>(record.replica));
    own.emplace_back(record.first_scheduled, 0);  // before an end at the same time
    own.emplace_back(record.finish, 1);
  }
  std::int64_t most = 0;
  for (auto& own : changes) {
    std::ranges::sort(own);
    std::int64_t now = 0;
    for (const auto& [time, is_end] : own) {
      now += is_end != 0 ? -1 : 1;
      most = std::max(most, now);
    }
  }
  return most;
}

}  // namespace

std::optional<PeakUse> peak_use(const Scenario& scenario, const Workload& workload,
                                const ServiceResult& result) {
  const ServingMetrics& metrics = result.metrics;
  const bool depends_otherwise = scenario.disaggregation || workload.hash_block_tokens > 0 ||
                                 workload.is_static_batch || workload.warmup_requests > 0 ||
                                 workload.drain_requests > 0 ||
                                 scenario.engine.batch_wait_timeout_iters > 0;
  const bool was_held_up =
      std::ranges::any_of(metrics.load.held_up, [](double share) { return share > 0; }) ||
      std::ranges::any_of(result.requests,
                          [](const RequestRecord& record) { return record.num_preemptions > 0; });
  if (depends_otherwise || was_held_up) return std::nullopt;
  PeakUse use{.sequences =
                  most_sequences(result.requests, static_cast<std::size_t>(scenario.replicas))};
  std::map<std::pair<int, Seconds>, std::int64_t> begun;  // tokens, by replica and step
  for (const RequestRecord& record : result.requests) {
    std::int64_t& tokens = begun[{record.replica, record.first_scheduled}];
    tokens += record.prompt_tokens;
    use.prompt_tokens = std::max(use.prompt_tokens, tokens);
    use.longest = std::max(use.longest, record.prompt_tokens + record.output_tokens);
  }
  return use;
}

bool is_out_of_reach(const Scenario& scenario, const PeakUse& use) {
  const EngineConfig& engine = scenario.engine;
  if (use.sequences > engine.max_num_seqs ||
      use.prompt_tokens + use.sequences > engine.max_num_batched_tokens) {
    return false;
  }
  const MemoryBudget memory = memory_budget(scenario);
  const std::int64_t of_block = tokens_of_block(engine, scenario.mesh);
  const std::int64_t blocks_of_longest =
      (use.longest + of_block - 1) / of_block + 1 + memory.state_blocks;
  // Even if all of them were on one data-parallel rank.
  return use.sequences * blocks_of_longest <= memory.num_kv_blocks / scenario.mesh.dp;
}

std::string text_without_limits(const Scenario& scenario) {
  Scenario same = scenario;
  same.engine.max_num_seqs = 1;
  same.engine.max_num_batched_tokens = 1;
  return to_yaml(same);
}

}  // namespace orrery
