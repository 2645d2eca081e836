#include "sim/serve/serve.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <exception>
#include <functional>
#include <mutex>
#include <queue>
#include <set>
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
    longest = std::max(longest, request.prompt_tokens + request.output_tokens - 1);
  }
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

// Replicas in one order of events: requests that clients send and what happens in replicas, by
// time, the former first on a tie, replicas by index.
class EventLoop {
 public:
  EventLoop(std::vector<std::unique_ptr<Replica>>& replicas, const Workload& workload,
            RouterKind router, std::span<const RequestRecord> records, ProgressCounter& progress)
      : replicas_(replicas),
        workload_(workload),
        router_(router, replicas),
        records_(records),
        progress_(progress),
        events_of_(replicas.size(), kNever) {}

  // `arrivals`: indices of the requests to serve, ascending. In a closed loop the first
  // `closed_loop_concurrency` are sent at 0 and another one whenever a client has its last token.
  void run(std::span<const std::int64_t> arrivals) {
    arrivals_ = arrivals;
    if (is_closed_) {
      for (std::int64_t i = 0; i < workload_.closed_loop_concurrency; ++i) sends_.emplace(0);
    }
    std::vector<std::int64_t> finished;
    while (true) {
      const Seconds event = events_.empty() ? kNever : events_.begin()->first;
      const Seconds sent = next_send();
      const Seconds now = std::min(event, sent);
      if (now == kNever) return;
      if (sent <= event) {
        send_due(now);
        continue;
      }
      const std::size_t replica = events_.begin()->second;
      finished.clear();
      replicas_[replica]->advance(now, finished);
      router_.changed(replica);
      progress_.add(static_cast<std::int64_t>(finished.size()));
      if (is_closed_) {
        for (const std::int64_t idx : finished) {
          sends_.push(records_[static_cast<std::size_t>(idx)].finish);
        }
      }
      touched_.push_back(replica);
      send_due(now);
    }
  }

 private:
  [[nodiscard]] Seconds next_send() const {
    if (next_ == arrivals_.size()) return kNever;
    if (is_closed_) return sends_.empty() ? kNever : sends_.top();
    return workload_.requests[static_cast<std::size_t>(arrivals_[next_])].arrival;
  }
  // Sends what is due at `now`; then whoever can starts a step. Nobody can to whom nothing
  // happened.
  void send_due(Seconds now) {
    for (; next_send() <= now; ++next_) {
      const std::int64_t idx = arrivals_[next_];
      const Request& request = workload_.requests[static_cast<std::size_t>(idx)];
      const std::size_t replica = router_.choose(request, idx, now);
      replicas_[replica]->submit(now, idx);
      router_.changed(replica);
      touched_.push_back(replica);
      if (is_closed_) sends_.pop();
    }
    std::ranges::sort(touched_);
    const auto repeated = std::ranges::unique(touched_);
    touched_.erase(repeated.begin(), repeated.end());
    for (const std::size_t replica : touched_) start(replica, now);
    touched_.clear();
  }
  void start(std::size_t index, Seconds now) {
    Replica& replica = *replicas_[index];
    replica.start(now);
    router_.changed(index);
    const Seconds event = replica.next_event().value_or(kNever);
    Seconds& known = events_of_[index];
    if (event == known) return;
    if (known != kNever) events_.erase({known, index});
    if (event != kNever) events_.emplace(event, index);
    known = event;
  }

  std::vector<std::unique_ptr<Replica>>& replicas_;
  const Workload& workload_;
  Router router_;
  std::span<const RequestRecord> records_;
  ProgressCounter& progress_;
  bool is_closed_ = workload_.closed_loop_concurrency > 0;
  std::span<const std::int64_t> arrivals_;
  std::size_t next_ = 0;                                                      // into arrivals_
  std::priority_queue<Seconds, std::vector<Seconds>, std::greater<>> sends_;  // of a closed loop
  std::set<std::pair<Seconds, std::size_t>> events_;
  std::vector<Seconds> events_of_;    // of each replica, as in events_
  std::vector<std::size_t> touched_;  // replicas that something happened to at this time
};

// Replicas that share nothing but the order of arrivals, side by side.
void run_apart(std::vector<std::unique_ptr<Replica>>& replicas, const Workload& workload,
               const ServiceConfig& config, std::span<const RequestRecord> records,
               ProgressCounter& progress) {
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
        std::vector<std::unique_ptr<Replica>> alone;
        alone.push_back(std::move(replicas[i]));
        EventLoop(alone, workload, RouterKind::kRoundRobin, records, progress).run(arrivals);
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

}  // namespace

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
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Request& request = workload.requests[i];
    records[i].id = request.id;
    records[i].prompt_tokens = request.prompt_tokens;
    records[i].output_tokens = request.output_tokens;
    records[i].is_measured = request.id >= workload.warmup_requests;
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
  std::vector<std::unique_ptr<Replica>> replicas;
  replicas.reserve(static_cast<std::size_t>(config.num_replicas));
  for (int i = 0; i < config.num_replicas; ++i) {
    replicas.push_back(
        std::make_unique<Replica>(i, config, workload.hash_block_tokens / config.engine.block_size,
                                  workload.requests, result.requests, make_backend(i)));
  }

  ProgressCounter counter(progress, static_cast<std::int64_t>(workload.requests.size()));
  if (router_policy(config.router).is_load_blind && workload.closed_loop_concurrency == 0) {
    run_apart(replicas, workload, config, result.requests, counter);
  } else {
    std::vector<std::int64_t> all(workload.requests.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
    EventLoop(replicas, workload, config.router, result.requests, counter).run(all);
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
  if (arrives_by_itself(workload)) {
    result.metrics.load = load_metrics(result.requests, totals);
  }
  return result;
}

}  // namespace orrery
