#include "kernels/serve/live_disaggregated.h"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "kernels/serve/disaggregated_replica.h"
#include "sim/serve/disaggregated.h"
#include "sim/serve/metrics.h"
#include "sim/serve/service_loop.h"

namespace orrery {
namespace {

using Package = DisaggregatedReplica::Package;

struct Transfer {
  std::int64_t request = 0;
  std::vector<std::int32_t> source;
  std::vector<std::int32_t> destination;
};

// Transfers from one prefill to one decode replica, one after the other on a thread.
class TransferThread {
 public:
  using Move = std::function<void(const Transfer&)>;
  explicit TransferThread(Move move) : move_(std::move(move)) {}
  ~TransferThread() { stop(); }
  TransferThread(const TransferThread&) = delete;
  TransferThread& operator=(const TransferThread&) = delete;

  void start() {
    thread_ = std::jthread([this] { run(); });
  }
  void submit(Transfer transfer) {
    {
      const std::scoped_lock lock(mutex_);
      queue_.push_back(std::move(transfer));
    }
    changed_.notify_one();
  }
  // Waits for the transfer that runs.
  void stop() {
    {
      const std::scoped_lock lock(mutex_);
      is_stopped_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
  }
  [[nodiscard]] std::exception_ptr error() const {
    const std::scoped_lock lock(mutex_);
    return error_;
  }

 private:
  void run() {
    try {
      std::unique_lock lock(mutex_);
      while (true) {
        changed_.wait(lock, [this] { return is_stopped_ || !queue_.empty(); });
        if (is_stopped_) return;
        const Transfer transfer = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        move_(transfer);
        lock.lock();
      }
    } catch (...) {  // whoever waits asks for it
      const std::scoped_lock lock(mutex_);
      error_ = std::current_exception();
    }
  }

  Move move_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Transfer> queue_;
  bool is_stopped_ = false;
  std::exception_ptr error_;
  std::jthread thread_;
};

class DisaggregatedService {
 public:
  DisaggregatedService(const Workload& workload, const LiveDisaggregatedSetup& setup,
                       LiveClock& clock, const Progress& progress)
      : workload_(workload),
        setup_(setup),
        clock_(clock),
        progress_(progress),
        records_(new_records(workload)),
        packages_(records_.size()) {
    for (int i = 0; i < setup.prefill.num_replicas; ++i) add(ReplicaRole::kPrefill, i);
    for (int i = 0; i < setup.decode.num_replicas; ++i) add(ReplicaRole::kDecode, i);
    for (std::size_t p = 0; p < prefill_.size(); ++p) {
      for (std::size_t d = 0; d < decode_.size(); ++d) {
        transfers_.push_back(std::make_unique<TransferThread>(
            [this, p, d](const Transfer& transfer) { move(p, d, transfer); }));
      }
    }
  }

  LiveDisaggregatedResult run(const Slo& slo, const std::function<bool()>& is_stopped) {
    clock_.restart();
    for (const auto& replica : prefill_) replica->start();
    for (const auto& replica : decode_) replica->start();
    for (const auto& transfers : transfers_) transfers->start();
    for (std::int64_t i = 0; i < workload_.closed_loop_concurrency; ++i) send_next(Seconds(0));
    wait_for_all(is_stopped);
    for (const auto& transfers : transfers_) transfers->stop();
    for (const auto* side : {&prefill_, &decode_}) {
      for (const auto& replica : *side) replica->stop();
      for (const auto& replica : *side) replica->join();
    }
    return result(slo);
  }

 private:
  using Replicas = std::vector<std::unique_ptr<DisaggregatedReplica>>;

  void add(ReplicaRole role, int number) {
    const bool is_prefill = role == ReplicaRole::kPrefill;
    const auto index = prefill_.size() + decode_.size();
    (is_prefill ? prefill_ : decode_)
        .push_back(std::make_unique<DisaggregatedReplica>(DisaggregatedReplica::Setup{
            .index = static_cast<int>(index),
            .role = role,
            .service = is_prefill ? &setup_.prefill : &setup_.decode,
            .steps = is_prefill ? setup_.prefill_steps : setup_.decode_steps,
            .runner = setup_.runners[index],
            .requests = workload_.requests,
            .records = records_,
            .clock = &clock_,
            .told = [this](const DisaggregatedReplica::Outcome& outcome) { on_outcome(outcome); },
            .reserved = [this, number](std::int64_t request) { on_reserved(number, request); }}));
  }

  [[nodiscard]] bool is_closed_loop() const { return workload_.closed_loop_concurrency > 0; }

  static std::size_t choose(const Replicas& replicas, RouterKind router, std::size_t count) {
    if (router == RouterKind::kRoundRobin) return count % replicas.size();
    std::vector<std::int64_t> loads;
    for (const auto& replica : replicas) loads.push_back(replica->outstanding_tokens());
    return static_cast<std::size_t>(std::ranges::min_element(loads) - loads.begin());
  }

  // Sends the next request, if there is one; its client does so at `at`.
  void send_next(Seconds at) {
    std::size_t idx = 0;
    {
      const std::scoped_lock lock(mutex_);
      if (next_ == records_.size()) return;
      idx = next_++;
    }
    prefill_[choose(prefill_, setup_.prefill.router, idx)]->send(at,
                                                                 static_cast<std::int64_t>(idx));
  }

  void on_outcome(const DisaggregatedReplica::Outcome& outcome) {
    for (const Package& package : outcome.handed_over) {
      std::size_t count = 0;
      {
        const std::scoped_lock lock(mutex_);
        count = num_handovers_++;
        packages_[static_cast<std::size_t>(package.handover.idx)] = package;
      }
      decode_[choose(decode_, setup_.decode.router, count)]->apply(
          [&](Replica& replica, Seconds now) { replica.receive(now, package.handover); });
    }
    {
      const std::scoped_lock lock(mutex_);
      num_finished_ += outcome.finished.size();
      if (progress_ && !outcome.finished.empty()) {
        progress_(static_cast<std::int64_t>(num_finished_),
                  static_cast<std::int64_t>(records_.size()));
      }
    }
    if (!is_closed_loop()) return;
    for (const std::int64_t idx : outcome.finished) {
      send_next(records_[static_cast<std::size_t>(idx)].finish);
    }
  }

  // With the lock of decode replica `number` held.
  void on_reserved(int number, std::int64_t request) {
    Package package;
    {
      const std::scoped_lock lock(mutex_);
      package = std::move(packages_[static_cast<std::size_t>(request)]);
    }
    const std::int64_t prompt = workload_.requests[static_cast<std::size_t>(request)].prompt_tokens;
    const auto blocks =
        decode_[static_cast<std::size_t>(number)]->steps().adopt(request, package.tokens, prompt);
    records_[static_cast<std::size_t>(request)].transfer_bytes =
        setup_.kv_block * static_cast<double>(blocks.size());
    Transfer transfer{.request = request,
                      .source = std::move(package.blocks),
                      .destination = {blocks.begin(), blocks.end()}};
    // A prompt that was cut may hold blocks beyond it by now; it does not, and must not.
    if (transfer.source.size() != transfer.destination.size()) {
      throw std::logic_error("request " + std::to_string(request) + " holds " +
                             std::to_string(transfer.source.size()) + " KV blocks and got " +
                             std::to_string(transfer.destination.size()));
    }
    transfers_[static_cast<std::size_t>(package.prefill) * decode_.size() +
               static_cast<std::size_t>(number)]
        ->submit(std::move(transfer));
  }

  void move(std::size_t prefill, std::size_t decode, const Transfer& transfer) {
    const Seconds time = setup_.mover->move(static_cast<int>(prefill), static_cast<int>(decode),
                                            transfer.source, transfer.destination);
    RequestRecord& record = records_[static_cast<std::size_t>(transfer.request)];
    record.transfer_end = clock_.now();
    record.transfer_start = record.transfer_end - time;
    decode_[decode]->apply(
        [&](Replica& replica, Seconds now) { replica.complete_transfer(now, transfer.request); });
    prefill_[prefill]->apply(
        [&](Replica& replica, Seconds) { replica.release_handed_over(transfer.request); });
  }

  [[nodiscard]] std::exception_ptr error() const {
    for (const auto* side : {&prefill_, &decode_}) {
      for (const auto& replica : *side) {
        if (const std::exception_ptr error = replica->error()) return error;
      }
    }
    for (const auto& transfers : transfers_) {
      if (const std::exception_ptr error = transfers->error()) return error;
    }
    return nullptr;
  }

  // Until all requests have finished, something failed, or it is to stop.
  void wait_for_all(const std::function<bool()>& is_stopped) {
    constexpr Seconds kGlance(0.02);  // how often it looks whether it is to end
    while (!error() && !(is_stopped && is_stopped())) {
      Seconds until = clock_.now() + kGlance;
      while (!is_closed_loop() && next_ < records_.size()) {
        const Seconds at = workload_.requests[next_].arrival;
        // A router that is blind to loads needs not wait.
        if (setup_.prefill.router != RouterKind::kRoundRobin && at > clock_.now()) {
          until = std::min(until, at);
          break;
        }
        send_next(at);
      }
      {
        const std::scoped_lock lock(mutex_);
        if (num_finished_ == records_.size()) return;
      }
      clock_.wait_until(until);
    }
  }

  LiveDisaggregatedResult result(const Slo& slo) {
    LiveDisaggregatedResult result;
    LiveResult& live = result.live;
    live.is_complete = num_finished_ == records_.size();
    live.error = error();
    std::vector<const ReplicaTotals*> totals;
    result.tokens.resize(records_.size());
    for (const auto* side : {&prefill_, &decode_}) {
      for (const auto& replica : *side) {
        totals.push_back(&replica->replica().totals());
        auto& steps = replica->replica().steps();
        live.service.steps.insert(live.service.steps.end(), steps.begin(), steps.end());
        for (std::size_t i = 0; i < records_.size(); ++i) {
          const auto tokens = replica->steps().tokens(static_cast<std::int64_t>(i));
          if (tokens.size() > result.tokens[i].size()) {
            result.tokens[i].assign(tokens.begin(), tokens.end());
          }
        }
      }
    }
    sort_steps(live.service.steps);
    std::ranges::copy_if(records_, std::back_inserter(live.service.requests),
                         [](const RequestRecord& record) { return record.finish > Seconds(0); });
    ServingMetrics& metrics = live.service.metrics;
    metrics = serving_metrics(live.service.requests, totals, slo);
    metrics.disaggregation =
        disaggregation_metrics(live.service.requests, std::span(totals).first(prefill_.size()),
                               std::span(totals).subspan(prefill_.size()));
    return result;
  }

  const Workload& workload_;
  const LiveDisaggregatedSetup& setup_;
  LiveClock& clock_;
  const Progress& progress_;
  std::vector<RequestRecord> records_;  // of each request, whoever has it writes it

  std::mutex mutex_;  // of what follows; taken last
  std::vector<Package> packages_;
  std::size_t next_ = 0;
  std::size_t num_handovers_ = 0;
  std::size_t num_finished_ = 0;

  Replicas prefill_;  // last, with the transfers: their threads use all above
  Replicas decode_;
  std::vector<std::unique_ptr<TransferThread>> transfers_;  // [prefill, decode]
};

}  // namespace

LiveDisaggregatedResult serve_live_disaggregated(const Workload& workload,
                                                 const LiveDisaggregatedSetup& setup,
                                                 const Slo& slo, LiveClock& clock,
                                                 const Progress& progress,
                                                 const std::function<bool()>& is_stopped) {
  check_disaggregated(workload, setup.prefill, setup.decode);
  for (const ServiceConfig* side : {&setup.prefill, &setup.decode}) {
    if (side->engine.enable_prefix_caching || side->num_dp_ranks > 1) {
      throw std::invalid_argument(
          "prefix caches and data-parallel ranks are not executed; expected neither");
    }
  }
  const std::int64_t num_replicas =
      std::int64_t{setup.prefill.num_replicas} + setup.decode.num_replicas;
  if (setup.mover == nullptr || static_cast<std::int64_t>(setup.runners.size()) != num_replicas) {
    throw std::invalid_argument("found " + std::to_string(setup.runners.size()) +
                                " instances, expected one for each replica, and a mover");
  }
  return DisaggregatedService(workload, setup, clock, progress).run(slo, is_stopped);
}

}  // namespace orrery
