#include "sim/serve/disaggregated.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "sim/serve/metrics.h"
#include "sim/serve/replica.h"
#include "sim/serve/router.h"
#include "sim/serve/service_checks.h"
#include "sim/serve/service_loop.h"

namespace orrery {
namespace {

template <typename Check>
void check_side(const std::string& side, Check check) {
  try {
    check();
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(side + ": " + error.what());
  }
}

}  // namespace

void check_disaggregated(const Workload& workload, const ServiceConfig& prefill,
                         const ServiceConfig& decode) {
  require(!workload.is_static_batch && !workload.is_offline,
          "disaggregation serves requests as they come; expected no static_batch or offline "
          "workload");
  require(prefill.engine.block_size == decode.engine.block_size,
          "block_size is " + std::to_string(prefill.engine.block_size) + " for prefill and " +
              std::to_string(decode.engine.block_size) +
              " for decode, expected the same since whole blocks move");
  require(!prefill.autoscaling && !decode.autoscaling,
          "found autoscaling beside disaggregation, expected replicas that compute prompts and "
          "decode");
  require(decode.router == decode_router(decode.router),
          "decode replicas have no prefix cache, expected router round_robin or least_loaded");
  check_side("decode", [&] { check_requests(workload, decode); });
  // What a prefill replica computes ends with the first token.
  Workload prompts = workload;
  prompts.turns.clear();
  for (Request& request : prompts.requests) {
    request.output_tokens = 1;
    if (workload.turns.empty()) continue;
    const auto of_prompt =
        static_cast<std::size_t>(request.prompt_tokens / workload.hash_block_tokens);
    request.block_hashes.resize(std::min(request.block_hashes.size(), of_prompt));
  }
  check_side("prefill", [&] { check_requests(prompts, prefill); });
}

std::int64_t transferred_blocks(const DisaggregatedConfig& config, const Request& request) {
  const std::int64_t size = config.prefill.engine.block_size;
  return (request.prompt_tokens + size - 1) / size + config.prefill.state_blocks;
}

ServiceResult serve_disaggregated(
    const Workload& workload, const DisaggregatedConfig& config, const Slo& slo,
    const std::function<std::unique_ptr<StepBackend>(int replica)>& make_backend,
    const Progress& progress) {
  check_disaggregated(workload, config.prefill, config.decode);
  const auto num_ranks = [](const ServiceConfig& side) {
    return static_cast<std::size_t>(side.num_replicas) *
           static_cast<std::size_t>(side.num_dp_ranks);
  };
  const std::size_t num_pairs = num_ranks(config.prefill) * num_ranks(config.decode);
  require(config.links.size() == num_pairs,
          "found " + std::to_string(config.links.size()) +
              " links, expected one for each pair of data-parallel ranks, " +
              std::to_string(num_pairs));
  assert(config.prefill.step_store == config.decode.step_store);
  ServiceResult result;
  result.step_store = config.prefill.step_store;
  result.requests = new_records(workload);
  const std::int64_t blocks_per_unit =
      workload.hash_block_tokens / config.prefill.engine.block_size;
  SharedTiers shared_tiers(config.prefill.kv_tiers, blocks_per_unit);
  Replicas prefill;
  Replicas decode;
  const auto add = [&](Replicas& side, const ServiceConfig& service, ReplicaRole role) {
    for (int i = 0; i < service.num_replicas; ++i) {
      const int index = static_cast<int>(prefill.size() + decode.size());
      side.push_back(std::make_unique<Replica>(index, service, blocks_per_unit, workload.requests,
                                               result.requests, make_backend(index), role,
                                               &shared_tiers));
    }
  };
  add(prefill, config.prefill, ReplicaRole::kPrefill);
  add(decode, config.decode, ReplicaRole::kDecode);

  ProgressCounter counter(progress, static_cast<std::int64_t>(workload.requests.size()));
  std::vector<std::int64_t> all(workload.requests.size());
  std::iota(all.begin(), all.end(), 0);
  TransferQueue transfers(config.links, static_cast<int>(num_ranks(config.decode)));
  ServiceLoop(workload, result.requests, prefill, decode, config, transfers, counter).run(all);

  std::vector<const ReplicaTotals*> totals;
  for (const Replicas* side : {&prefill, &decode}) {
    for (const std::unique_ptr<Replica>& replica : *side) {
      assert(replica->is_drained());
      totals.push_back(&replica->totals());
      result.steps.insert(result.steps.end(), replica->steps().begin(), replica->steps().end());
    }
  }
  sort_steps(result.steps);
  result.metrics = serving_metrics(result.requests, totals, slo);
  add_load_metrics(workload, totals, result);
  add_expert_metrics(prefill, result.metrics);
  add_expert_metrics(decode, result.metrics);
  if (blocks_per_unit > 0) {
    result.metrics.kv_tiers = kv_tier_metrics(config.prefill.kv_tiers, blocks_per_unit,
                                              std::span(totals).first(prefill.size()));
  }
  result.metrics.disaggregation =
      disaggregation_metrics(result.requests, std::span(totals).first(prefill.size()),
                             std::span(totals).subspan(prefill.size()));
  return result;
}

}  // namespace orrery
