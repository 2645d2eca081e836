#include "kernels/serve/live.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>

#include "kernels/serve/live_loop.h"
#include "sim/serve/disaggregated.h"
#include "sim/serve/executed_tiers.h"
#include "sim/serve/kv_tiers.h"
#include "sim/serve/metrics.h"
#include "sim/serve/replica.h"
#include "sim/serve/service_loop.h"

namespace orrery {
namespace {

// Computes without the lock.
class UnlockedRunner : public StepRunner {
 public:
  UnlockedRunner(std::mutex& mutex, StepRunner& runner) : mutex_(mutex), runner_(runner) {}
  void capture(std::int64_t rows) override { runner_.capture(rows); }
  std::vector<std::int32_t> run(const StepInput& input, std::int64_t graph_rows,
                                const KvMoves& moves) override {
    const Unlocked unlocked(mutex_);
    return runner_.run(input, graph_rows, moves);
  }
  [[nodiscard]] Seconds waited() const override { return runner_.waited(); }

 private:
  std::mutex& mutex_;
  StepRunner& runner_;
};

// Blocks of a unit of the prefix cache; 0: there is none.
std::int64_t blocks_per_unit(const ServiceConfig& service, const Workload& workload) {
  if (!caches_prefixes(service.engine, workload)) return 0;
  return workload.hash_block_tokens / service.engine.block_size;
}

struct LiveReplicas {
  std::vector<std::unique_ptr<UnlockedRunner>> runners;
  std::vector<ExecutedSteps*> steps;  // the replicas'
  Replicas replicas;
};

void check_side(const LiveSide& side, const Workload& workload, bool is_apart) {
  const ServiceConfig& service = side.service;
  if (service.router == RouterKind::kPrefixAware) {
    throw std::invalid_argument(
        "router prefix_aware is not executed, which sends prompts to where their prefixes are; "
        "expected round_robin or least_loaded");
  }
  if (const auto refusal = tiers_refusal(service.kv_tiers, {.dp = service.num_dp_ranks})) {
    throw std::invalid_argument(*refusal);
  }
  if (caches_prefixes(service.engine, workload) && is_apart) {
    throw std::invalid_argument(
        "prefix caches of a service with prefill and decode apart are not executed, and prompts of "
        "the workload share prefixes; expected enable_prefix_caching off");
  }
  if (side.steps.caches_prefixes != caches_prefixes(service.engine, workload)) {
    throw std::invalid_argument("steps and scheduler differ in whether prefixes are cached");
  }
  if (side.steps.num_dp_ranks != service.num_dp_ranks) {
    throw std::invalid_argument("steps of " + std::to_string(side.steps.num_dp_ranks) +
                                " data-parallel ranks for a scheduler of " +
                                std::to_string(service.num_dp_ranks));
  }
  if (std::ssize(side.runners) != service.num_replicas) {
    throw std::invalid_argument("found " + std::to_string(side.runners.size()) +
                                " runners, expected one for each replica, " +
                                std::to_string(service.num_replicas));
  }
}

// What is to be served, as it can be; throws std::invalid_argument.
LiveSetup checked(const LiveSetup& given, const Workload& workload) {
  LiveSetup setup = given;
  if (setup.decode) {
    check_disaggregated(workload, setup.first.service, setup.decode->service);
    if (setup.mover == nullptr) {
      throw std::invalid_argument("prefill and decode are apart; expected what moves KV caches");
    }
    check_side(*setup.decode, workload, true);
  } else {
    setup.first.service = checked_config(setup.first.service, workload);
  }
  check_side(setup.first, workload, setup.decode.has_value());
  return setup;
}

class LiveService {
 public:
  LiveService(const Workload& workload, const LiveSetup& setup, LiveClock& clock,
              const Progress& progress)
      : workload_(workload),
        setup_(setup),
        clock_(clock),
        blocks_per_unit_(blocks_per_unit(setup.first.service, workload)),
        shared_tiers_(setup.first.service.kv_tiers, blocks_per_unit_),
        records_(new_records(workload)),
        progress_(progress, std::ssize(records_)),
        live_(clock, num_threads(setup)) {
    add(first_, setup.first, setup.decode ? ReplicaRole::kPrefill : ReplicaRole::kWhole);
    if (setup.decode) add(decode_, *setup.decode, ReplicaRole::kDecode);
  }

  LiveResult run(const Slo& slo, const std::function<bool()>& is_stopped) {
    clock_.restart();
    if (setup_.decode) {
      LiveTransfers transfers(live_, first_.replicas.size() + decode_.replicas.size(), clock_,
                              *setup_.mover, workload_.requests, first_.steps, decode_.steps);
      const DisaggregatedConfig config{.prefill = setup_.first.service,
                                       .decode = setup_.decode->service,
                                       .kv_block = setup_.kv_block,
                                       .num_moved_layers = setup_.moves_layers ? 1 : 0};
      ServiceLoop loop(workload_, records_, first_.replicas, decode_.replicas, config, transfers,
                       progress_);
      turn(loop, is_stopped);
    } else {
      ServiceLoop loop(workload_, records_, first_.replicas, setup_.first.service.router,
                       progress_);
      turn(loop, is_stopped);
    }
    return result(slo);
  }

 private:
  // One for each replica, and for each pair of ranks between which KV caches move.
  static std::size_t num_threads(const LiveSetup& setup) {
    const auto ranks = [](const LiveSide& side) {
      return side.runners.size() * static_cast<std::size_t>(side.service.num_dp_ranks);
    };
    const std::size_t first = setup.first.runners.size();
    if (!setup.decode) return first;
    return first + setup.decode->runners.size() + ranks(setup.first) * ranks(*setup.decode);
  }

  void add(LiveReplicas& to, const LiveSide& side, ReplicaRole role) {
    for (StepRunner* runner : side.runners) {
      to.runners.push_back(std::make_unique<UnlockedRunner>(live_.mutex(), *runner));
      auto steps = std::make_unique<ExecutedSteps>(side.steps, workload_.requests,
                                                   *to.runners.back(), clock_);
      to.steps.push_back(steps.get());
      const std::size_t index = first_.replicas.size() + decode_.replicas.size();
      to.replicas.push_back(std::make_unique<Replica>(
          static_cast<int>(index), side.service, blocks_per_unit_, workload_.requests, records_,
          std::move(steps), role, &shared_tiers_));
    }
  }

  void turn(ServiceLoop& loop, const std::function<bool()>& is_stopped) {
    loop.compute_elsewhere([&](std::size_t replica) {
      live_.give(replica, [&loop, replica] { loop.compute_step(replica); });
    });
    std::vector<std::int64_t> all(records_.size());
    std::iota(all.begin(), all.end(), 0);
    live_.run(loop, all, is_stopped);
  }

  LiveResult result(const Slo& slo) {
    LiveResult result{.error = live_.error()};
    result.tokens.resize(records_.size());
    std::vector<const ReplicaTotals*> totals;
    ServiceResult& service = result.service;
    for (const LiveReplicas* side : {&first_, &decode_}) {
      for (const std::unique_ptr<Replica>& replica : side->replicas) {
        totals.push_back(&replica->totals());
        service.steps.insert(service.steps.end(), replica->steps().begin(), replica->steps().end());
      }
      for (const ExecutedSteps* steps : side->steps) keep_tokens(*steps, result.tokens);
    }
    sort_steps(service.steps);
    std::ranges::copy_if(records_, std::back_inserter(service.requests),
                         [](const RequestRecord& record) { return record.finish > Seconds(0); });
    result.is_complete = service.requests.size() == records_.size();
    service.metrics = serving_metrics(service.requests, totals, slo);
    service.metrics.ranks.reset();  // GPUs do not tell how long they wait for each other
    if (blocks_per_unit_ > 0) {
      service.metrics.kv_tiers =
          kv_tier_metrics(setup_.first.service.kv_tiers, blocks_per_unit_, totals);
    }
    if (!setup_.decode) return result;
    const std::size_t num_prefill = first_.replicas.size();
    service.metrics.disaggregation =
        disaggregation_metrics(service.requests, std::span(totals).first(num_prefill),
                               std::span(totals).subspan(num_prefill));
    return result;
  }

  void keep_tokens(const ExecutedSteps& steps, std::vector<std::vector<std::int32_t>>& of) const {
    for (std::size_t i = 0; i < of.size(); ++i) {
      const Request& request = workload_.requests[i];
      const std::span<const std::int32_t> made = steps.tokens(static_cast<std::int64_t>(i));
      if (std::ssize(made) == request.prompt_tokens + request.output_tokens) {
        of[i].assign(made.begin(), made.end());
      }
    }
  }

  const Workload& workload_;
  const LiveSetup& setup_;
  LiveClock& clock_;
  std::int64_t blocks_per_unit_;
  SharedTiers shared_tiers_;
  std::vector<RequestRecord> records_;
  ProgressCounter progress_;
  LiveReplicas first_;
  LiveReplicas decode_;
  LiveLoop live_;
};

}  // namespace

bool caches_prefixes(const EngineConfig& engine, const Workload& workload) {
  return engine.enable_prefix_caching && workload.hash_block_tokens > 0;
}

LiveResult serve_live(const Workload& workload, const LiveSetup& given, const Slo& slo,
                      LiveClock& clock, const Progress& progress,
                      const std::function<bool()>& is_stopped) {
  const LiveSetup setup = checked(given, workload);
  return LiveService(workload, setup, clock, progress).run(slo, is_stopped);
}

}  // namespace orrery
