#include "kernels/serve/live.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <span>
#include <stdexcept>
#include <vector>

#include "kernels/serve/live_replica.h"
#include "sim/serve/metrics.h"
#include "sim/serve/replica.h"

namespace orrery {
namespace {

// Clients, the router and the replicas behind it. A router that is blind to loads sends requests
// ahead of their time, so no thread stands between a client and its replica.
class LiveService {
 public:
  LiveService(const Workload& workload, const ServiceConfig& config, LiveClock& clock,
              const Progress& progress)
      : workload_(workload),
        config_(config),
        clock_(clock),
        progress_(progress),
        records_(new_records(workload)) {}

  void add(int index, std::unique_ptr<StepBackend> backend) {
    auto replica = std::make_unique<Replica>(
        index, config_, workload_.hash_block_tokens / config_.engine.block_size, workload_.requests,
        records_, std::move(backend));
    replicas_.push_back(std::make_unique<LiveReplica>(
        std::move(replica), records_, clock_,
        [this](std::span<const std::int64_t> finished) { on_finished(finished); }));
  }

  LiveResult run(const Slo& slo, const std::function<bool()>& is_stopped) {
    clock_.restart();
    if (is_closed_loop()) {
      send(static_cast<std::size_t>(workload_.closed_loop_concurrency),
           [](std::size_t) { return Seconds(0); });
    } else if (config_.router == RouterKind::kRoundRobin) {
      send(records_.size(), [this](std::size_t idx) { return workload_.requests[idx].arrival; });
    }
    for (const auto& replica : replicas_) replica->start();
    if (!wait_for_all(is_stopped)) {
      for (const auto& replica : replicas_) replica->stop();
    }
    for (const auto& replica : replicas_) replica->join();
    return result(slo);
  }

 private:
  [[nodiscard]] bool is_closed_loop() const { return workload_.closed_loop_concurrency > 0; }

  // Sends the next `count` requests, or all that are left, each at `time(index)`. The caller holds
  // the mutex once threads run.
  template <typename Time>
  void send(std::size_t count, Time&& time) {
    std::vector<std::vector<LiveReplica::Sent>> sent(replicas_.size());
    std::vector<std::int64_t> loads;
    loads.reserve(replicas_.size());
    for (const auto& replica : replicas_) loads.push_back(replica->outstanding_tokens());
    for (; count > 0 && next_ < records_.size(); --count, ++next_) {
      const std::size_t chosen = choose(loads);
      loads[chosen] += records_[next_].prompt_tokens + records_[next_].output_tokens - 1;
      sent[chosen].push_back({.at = time(next_), .request = static_cast<std::int64_t>(next_)});
    }
    for (std::size_t i = 0; i < sent.size(); ++i) {
      if (!sent[i].empty()) replicas_[i]->send(sent[i]);
    }
    if (next_ < records_.size()) return;
    for (const auto& replica : replicas_) replica->close();
  }

  // As the routers of sim/serve/router.cpp choose.
  [[nodiscard]] std::size_t choose(std::span<const std::int64_t> loads) const {
    if (config_.router == RouterKind::kRoundRobin) return next_ % replicas_.size();
    return static_cast<std::size_t>(std::ranges::min_element(loads) - loads.begin());
  }

  void on_finished(std::span<const std::int64_t> finished) {
    const std::scoped_lock lock(mutex_);
    num_finished_ += finished.size();
    if (progress_) {
      progress_(static_cast<std::int64_t>(num_finished_),
                static_cast<std::int64_t>(records_.size()));
    }
    if (!is_closed_loop()) return;
    for (const std::int64_t idx : finished) {
      const Seconds at = records_[static_cast<std::size_t>(idx)].finish;
      send(1, [&](std::size_t) { return at; });
    }
  }

  // Until all requests have finished; false when it was stopped or a replica failed. Sends what has
  // not been sent ahead.
  bool wait_for_all(const std::function<bool()>& is_stopped) {
    constexpr Seconds kGlance(0.02);  // how often it looks whether it is to end
    while (true) {
      if (is_stopped && is_stopped()) return false;
      for (const auto& replica : replicas_) {
        if (replica->error()) return false;
      }
      Seconds until = clock_.now() + kGlance;
      {
        const std::scoped_lock lock(mutex_);
        if (num_finished_ == records_.size()) return true;
        if (!is_closed_loop()) until = std::min(until, send_due(until));
      }
      clock_.wait_until(until);
    }
  }

  // Sends those of an open loop whose time has come; when the next one's comes, or `latest`.
  Seconds send_due(Seconds latest) {
    while (next_ < records_.size()) {
      const Seconds at = workload_.requests[next_].arrival;
      if (at > clock_.now()) return std::min(at, latest);
      send(1, [&](std::size_t) { return at; });
    }
    return latest;
  }

  LiveResult result(const Slo& slo) {
    LiveResult result{.is_complete = num_finished_ == records_.size()};
    std::vector<const ReplicaTotals*> totals;
    for (const auto& live : replicas_) {
      if (!result.error) result.error = live->error();
      Replica& replica = live->replica();
      totals.push_back(&replica.totals());
      result.service.steps.insert(result.service.steps.end(), replica.steps().begin(),
                                  replica.steps().end());
    }
    std::ranges::sort(result.service.steps, [](const StepRecord& a, const StepRecord& b) {
      return a.start != b.start ? a.start < b.start : a.replica < b.replica;
    });
    std::ranges::copy_if(records_, std::back_inserter(result.service.requests),
                         [](const RequestRecord& record) { return record.finish > Seconds(0); });
    result.service.metrics = serving_metrics(result.service.requests, totals, slo);
    return result;
  }

  const Workload& workload_;
  const ServiceConfig& config_;
  LiveClock& clock_;
  const Progress& progress_;
  std::vector<RequestRecord> records_;

  std::mutex mutex_;  // of what follows, but for replicas_
  std::size_t next_ = 0;
  std::size_t num_finished_ = 0;
  std::vector<std::unique_ptr<LiveReplica>> replicas_;  // last: their threads use all above
};

}  // namespace

LiveResult serve_live(const Workload& workload, const ServiceConfig& given, const Slo& slo,
                      const std::function<std::unique_ptr<StepBackend>(int replica)>& make_backend,
                      LiveClock& clock, const Progress& progress,
                      const std::function<bool()>& is_stopped) {
  const ServiceConfig config = checked_config(given, workload);
  if (config.router == RouterKind::kPrefixAware) {
    throw std::invalid_argument(
        "router prefix_aware needs prefix caches, which are not executed; expected round_robin or "
        "least_loaded");
  }
  LiveService service(workload, config, clock, progress);
  for (int i = 0; i < config.num_replicas; ++i) service.add(i, make_backend(i));
  return service.run(slo, is_stopped);
}

}  // namespace orrery
