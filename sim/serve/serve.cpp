#include "sim/serve/serve.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cmath>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <queue>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sim/serve/metrics.h"
#include "sim/serve/replica.h"
#include "sim/serve/router.h"

namespace orrery {
namespace {

void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

void check(const ServiceConfig& config, const Workload& workload) {
  const EngineConfig& engine = config.engine;
  require(config.num_threads >= 1,
          "num_threads is " + std::to_string(config.num_threads) + ", expected at least 1");
  require(config.num_replicas >= 1,
          "replicas is " + std::to_string(config.num_replicas) + ", expected at least 1");
  require(config.num_dp_ranks >= 1,
          "num_dp_ranks is " + std::to_string(config.num_dp_ranks) + ", expected at least 1");
  require(engine.block_size >= 1,
          "block_size is " + std::to_string(engine.block_size) + ", expected at least 1");
  require(engine.max_num_seqs >= 1,
          "max_num_seqs is " + std::to_string(engine.max_num_seqs) + ", expected at least 1");
  require(engine.max_num_batched_tokens >= engine.max_num_seqs,
          "max_num_batched_tokens is " + std::to_string(engine.max_num_batched_tokens) +
              ", expected at least max_num_seqs, " + std::to_string(engine.max_num_seqs));
  require(
      engine.new_token_ratio >= 0 && engine.new_token_ratio <= 1,
      "new_token_ratio is " + std::to_string(engine.new_token_ratio) + ", expected from 0 to 1");
  require(config.num_kv_blocks >= 1, "the KV cache has " + std::to_string(config.num_kv_blocks) +
                                         " blocks, expected at least 1");
  require(config.router != RouterKind::kPrefixAware || engine.enable_prefix_caching,
          "router prefix_aware finds no prefix without enable_prefix_caching, expected it on or "
          "router least_loaded");
  require(workload.closed_loop_concurrency >= 0,
          "concurrency is " + std::to_string(workload.closed_loop_concurrency) +
              ", expected at least 1, or 0 for an open loop");
  const auto num_requests = static_cast<std::int64_t>(workload.requests.size());
  require(workload.warmup_requests >= 0 &&
              workload.warmup_requests < std::max<std::int64_t>(num_requests, 1),
          "warmup_requests is " + std::to_string(workload.warmup_requests) +
              ", expected at least 0 and fewer than the " + std::to_string(num_requests) +
              " requests");
  require(!engine.enable_prefix_caching || workload.hash_block_tokens % engine.block_size == 0,
          "block_size is " + std::to_string(engine.block_size) +
              ", expected a divisor of the workload's hash blocks of " +
              std::to_string(workload.hash_block_tokens) + " tokens");
}

void check(const Request& request, const ServiceConfig& config, std::int64_t hash_block_tokens) {
  const EngineConfig& engine = config.engine;
  const std::string name = "request " + std::to_string(request.id);
  require(request.prompt_tokens >= 1 && request.output_tokens >= 1,
          name + " has " + std::to_string(request.prompt_tokens) + " prompt and " +
              std::to_string(request.output_tokens) +
              " output tokens, expected at least 1 of each");
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;  // keeps the sums below in range
  require(request.prompt_tokens <= kMostTokens && request.output_tokens <= kMostTokens,
          name + " has " + std::to_string(request.prompt_tokens) + " prompt and " +
              std::to_string(request.output_tokens) + " output tokens, expected at most 2^40");
  const std::int64_t total = request.prompt_tokens + request.output_tokens;
  require(engine.max_model_len == 0 || total <= engine.max_model_len,
          name + " has " + std::to_string(total) +
              " prompt and output tokens, more than max_model_len, " +
              std::to_string(engine.max_model_len));
  // The last output token is never computed, so it takes no room in the cache.
  const std::int64_t capacity = config.num_kv_blocks / config.num_dp_ranks * engine.block_size;
  require(total - 1 <= capacity,
          name + " needs " + std::to_string(total - 1) + " tokens of KV cache, more than the " +
              std::to_string(capacity) + " that one " +
              (config.num_dp_ranks == 1 ? "replica" : "data-parallel rank") + " holds");
  // What was preempted computes its own tokens again with its prompt.
  const std::int64_t whole =
      engine.kv_admission == KvAdmission::kFullLength ? request.prompt_tokens : total - 1;
  require(engine.enable_chunked_prefill || whole <= engine.max_num_batched_tokens,
          name + " needs up to " + std::to_string(whole) +
              " tokens in one step without chunked prefill, more than max_num_batched_tokens, " +
              std::to_string(engine.max_num_batched_tokens));
  const auto num_hashes = static_cast<std::int64_t>(request.block_hashes.size());
  require(num_hashes * hash_block_tokens <= request.prompt_tokens,
          name + " has " + std::to_string(num_hashes) + " block hashes of " +
              std::to_string(hash_block_tokens) + " tokens, expected those of the full blocks of " +
              std::to_string(request.prompt_tokens) + " prompt tokens only");
}

void check(const Workload& workload, const ServiceConfig& config) {
  check(config, workload);
  Seconds before(-std::numeric_limits<double>::infinity());
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const Request& request = workload.requests[i];
    require(request.id == static_cast<std::int64_t>(i),
            "request at index " + std::to_string(i) + " has id " + std::to_string(request.id) +
                ", expected its index");
    check(request, config, workload.hash_block_tokens);
    if (workload.closed_loop_concurrency > 0) continue;
    require(std::isfinite(request.arrival.value()) && request.arrival >= Seconds(0),
            "request " + std::to_string(i) + " arrives at a time that is negative or not finite");
    require(request.arrival >= before,
            "request " + std::to_string(i) +
                " arrives before the one above; expected ascending arrivals");
    before = request.arrival;
  }
}

ServiceConfig adapted(ServiceConfig config, const Workload& workload) {
  if (workload.is_offline) config.front_end = {};
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
  const std::int64_t blocks = sequences * ((longest + engine.block_size - 1) / engine.block_size);
  require(blocks <= config.num_kv_blocks,
          "a static batch of " + std::to_string(sequences) + " sequences needs up to " +
              std::to_string(blocks) + " KV blocks, more than the " +
              std::to_string(config.num_kv_blocks) + " that one replica holds");
  return config;
}

// Calls back from whatever thread finishes requests, one call at a time.
class ProgressCounter {
 public:
  ProgressCounter(const Progress& progress, std::int64_t total)
      : progress_(progress), total_(total), interval_(std::max<std::int64_t>(total / 100, 1)) {}
  void add(std::int64_t count) {
    if (!progress_ || count == 0) return;
    const std::scoped_lock lock(mutex_);
    const std::int64_t before = done_;
    done_ += count;
    if (before / interval_ != done_ / interval_ || done_ == total_) progress_(done_, total_);
  }

 private:
  const Progress& progress_;
  std::int64_t total_;
  std::int64_t interval_;
  std::int64_t done_ = 0;
  std::mutex mutex_;
};

constexpr Seconds kNever(std::numeric_limits<double>::infinity());

// Replicas in one order of events: requests that clients send and what happens in replicas, by
// time, the former first on a tie, replicas by index.
class EventLoop {
 public:
  EventLoop(std::vector<std::unique_ptr<Replica>>& replicas, const Workload& workload,
            const RouterPolicy& router, std::span<const RequestRecord> records,
            ProgressCounter& progress)
      : replicas_(replicas),
        workload_(workload),
        router_(router),
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
      progress_.add(static_cast<std::int64_t>(finished.size()));
      if (is_closed_) {
        for (const std::int64_t idx : finished) {
          sends_.push(records_[static_cast<std::size_t>(idx)].finish);
        }
      }
      if (next_send() <= now) {
        send_due(now);
      } else {
        start(replica, now);
      }
    }
  }

 private:
  [[nodiscard]] Seconds next_send() const {
    if (next_ == arrivals_.size()) return kNever;
    if (is_closed_) return sends_.empty() ? kNever : sends_.top();
    return workload_.requests[static_cast<std::size_t>(arrivals_[next_])].arrival;
  }
  // Sends what is due at `now`; then whoever can starts a step.
  void send_due(Seconds now) {
    for (; next_send() <= now; ++next_) {
      const std::int64_t idx = arrivals_[next_];
      const Request& request = workload_.requests[static_cast<std::size_t>(idx)];
      replicas_[router_.choose(replicas_, request, idx, now)]->submit(now, idx);
      if (is_closed_) sends_.pop();
    }
    for (std::size_t i = 0; i < replicas_.size(); ++i) start(i, now);
  }
  void start(std::size_t index, Seconds now) {
    Replica& replica = *replicas_[index];
    replica.start(now);
    const Seconds event = replica.next_event().value_or(kNever);
    Seconds& known = events_of_[index];
    if (event == known) return;
    if (known != kNever) events_.erase({known, index});
    if (event != kNever) events_.emplace(event, index);
    known = event;
  }

  std::vector<std::unique_ptr<Replica>>& replicas_;
  const Workload& workload_;
  const RouterPolicy& router_;
  std::span<const RequestRecord> records_;
  ProgressCounter& progress_;
  bool is_closed_ = workload_.closed_loop_concurrency > 0;
  std::span<const std::int64_t> arrivals_;
  std::size_t next_ = 0;                                                      // into arrivals_
  std::priority_queue<Seconds, std::vector<Seconds>, std::greater<>> sends_;  // of a closed loop
  std::set<std::pair<Seconds, std::size_t>> events_;
  std::vector<Seconds> events_of_;  // of each replica, as in events_
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
        EventLoop(alone, workload, router_policy(RouterKind::kRoundRobin), records, progress)
            .run(arrivals);
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

ServiceConfig checked_config(const ServiceConfig& given, const Workload& workload) {
  check(given, workload);
  const ServiceConfig config = adapted(given, workload);
  check(workload, config);
  return config;
}

std::vector<RequestRecord> new_records(const Workload& workload) {
  std::vector<RequestRecord> records(workload.requests.size());
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Request& request = workload.requests[i];
    records[i].id = request.id;
    records[i].prompt_tokens = request.prompt_tokens;
    records[i].output_tokens = request.output_tokens;
  }
  return records;
}

ServiceResult serve(const Workload& workload, const ServiceConfig& given, const Slo& slo,
                    const std::function<std::unique_ptr<StepBackend>(int replica)>& make_backend,
                    const Progress& progress) {
  const ServiceConfig config = checked_config(given, workload);
  ServiceResult result;
  result.requests = new_records(workload);
  std::vector<std::unique_ptr<Replica>> replicas;
  replicas.reserve(static_cast<std::size_t>(config.num_replicas));
  for (int i = 0; i < config.num_replicas; ++i) {
    replicas.push_back(
        std::make_unique<Replica>(i, config, workload.hash_block_tokens / config.engine.block_size,
                                  workload.requests, result.requests, make_backend(i)));
  }

  ProgressCounter counter(progress, static_cast<std::int64_t>(workload.requests.size()));
  const RouterPolicy& router = router_policy(config.router);
  if (router.is_load_blind && workload.closed_loop_concurrency == 0) {
    run_apart(replicas, workload, config, result.requests, counter);
  } else {
    std::vector<std::int64_t> all(workload.requests.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
    EventLoop(replicas, workload, router, result.requests, counter).run(all);
  }

  std::vector<const ReplicaTotals*> totals;
  totals.reserve(replicas.size());
  for (const std::unique_ptr<Replica>& replica : replicas) {
    assert(replica->is_drained());
    totals.push_back(&replica->totals());
    result.steps.insert(result.steps.end(), replica->steps().begin(), replica->steps().end());
  }
  std::ranges::sort(result.steps, [](const StepRecord& a, const StepRecord& b) {
    return a.start != b.start ? a.start < b.start : a.replica < b.replica;
  });
  result.metrics = serving_metrics(result.requests, workload.warmup_requests, totals, slo);
  return result;
}

}  // namespace orrery
