#include "sim/serve/disaggregated.h"

#include <algorithm>
#include <cassert>
#include <queue>
#include <set>
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

using Replicas = std::vector<std::unique_ptr<Replica>>;

template <typename Check>
void check_side(const std::string& side, Check check) {
  try {
    check();
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(side + ": " + error.what());
  }
}

// Events of one side's replicas by (time, index).
class Events {
 public:
  explicit Events(std::size_t num_replicas) : known_(num_replicas, kNever) {}
  [[nodiscard]] Seconds next() const { return due_.empty() ? kNever : due_.begin()->first; }
  [[nodiscard]] std::size_t front() const { return due_.begin()->second; }
  void update(std::size_t index, Seconds event) {
    if (event == known_[index]) return;
    if (known_[index] != kNever) due_.erase({known_[index], index});
    if (event != kNever) due_.emplace(event, index);
    known_[index] = event;
  }

 private:
  std::set<std::pair<Seconds, std::size_t>> due_;
  std::vector<Seconds> known_;
};

// At one time: requests are sent, prompts end and are handed over, transfers end, decode steps end;
// then whoever can starts a step.
class DisaggregatedLoop {
 public:
  DisaggregatedLoop(Replicas& prefill, Replicas& decode, const Workload& workload,
                    const DisaggregatedConfig& config, std::span<RequestRecord> records,
                    ProgressCounter& progress)
      : prefill_(prefill),
        decode_(decode),
        workload_(workload),
        config_(config),
        records_(records),
        progress_(progress),
        prefill_events_(prefill.size()),
        decode_events_(decode.size()),
        transfers_(config.links, config.decode.num_replicas) {}

  void run() {
    for (std::int64_t i = 0; i < workload_.closed_loop_concurrency; ++i) sends_.emplace(0);
    while (true) {
      const Seconds now = std::min({next_send(), prefill_events_.next(), decode_events_.next(),
                                    transfers_.next_event().value_or(kNever)});
      if (now == kNever) return;
      send_due(now);
      end_prompts(now);
      end_transfers(now);
      end_decodes(now);
      send_due(now);  // of clients that have their last token at once
      start(now);
    }
  }

 private:
  [[nodiscard]] Seconds next_send() const {
    if (next_ == workload_.requests.size()) return kNever;
    if (is_closed_) return sends_.empty() ? kNever : sends_.top();
    return workload_.requests[next_].arrival;
  }
  void send_due(Seconds now) {
    for (; next_send() <= now; ++next_) {
      const auto idx = static_cast<std::int64_t>(next_);
      const std::size_t replica = prefill_router_.choose(workload_.requests[next_], idx, now);
      prefill_[replica]->submit(now, idx);
      touch_prefill(replica);
      if (is_closed_) sends_.pop();
    }
  }
  void end_prompts(Seconds now) {
    while (prefill_events_.next() <= now) {
      const std::size_t index = prefill_events_.front();
      advance(*prefill_[index], now);
      touch_prefill(index);
      for (const Handover& handover : prefill_[index]->take_handovers()) hand_over(handover, now);
      prefill_events_.update(index, kNever);
    }
  }
  void hand_over(const Handover& handover, Seconds now) {
    const Request& request = workload_.requests[static_cast<std::size_t>(handover.idx)];
    const std::size_t index = decode_router_.choose(request, num_handovers_++, now);
    decode_[index]->receive(now, handover);
    begin_transfers(index, now);
    touch_decode(index);
    update_decode(index);
  }
  void end_transfers(Seconds now) {
    std::vector<TransferQueue::Ended> ended;
    while (transfers_.next_event().value_or(kNever) <= now) transfers_.advance(now, ended);
    for (const TransferQueue::Ended& transfer : ended) {
      RequestRecord& record = records_[static_cast<std::size_t>(transfer.idx)];
      record.transfer_start = transfer.start;
      record.transfer_end = transfer.end;
      const auto from = static_cast<std::size_t>(transfer.prefill);
      const auto to = static_cast<std::size_t>(transfer.decode);
      prefill_[from]->release_handed_over(transfer.idx);
      touch_prefill(from);
      decode_[to]->complete_transfer(now, transfer.idx);
      touch_decode(to);
      update_decode(to);
    }
  }
  void end_decodes(Seconds now) {
    while (decode_events_.next() <= now) {
      const std::size_t index = decode_events_.front();
      advance(*decode_[index], now);
      touch_decode(index);
      update_decode(index);
    }
  }
  void touch_prefill(std::size_t index) {
    prefill_touched_.insert(index);
    prefill_router_.changed(index);
  }
  void touch_decode(std::size_t index) {
    decode_touched_.insert(index);
    decode_router_.changed(index);
  }
  void advance(Replica& replica, Seconds now) {
    finished_.clear();
    replica.advance(now, finished_);
    progress_.add(static_cast<std::int64_t>(finished_.size()));
    if (!is_closed_) return;
    for (const std::int64_t idx : finished_) {
      sends_.push(records_[static_cast<std::size_t>(idx)].finish);
    }
  }
  void update_decode(std::size_t index) {
    decode_events_.update(index, decode_[index]->next_event().value_or(kNever));
  }
  void start(Seconds now) {
    for (const std::size_t index : prefill_touched_) {
      prefill_[index]->start(now);
      prefill_router_.changed(index);
      prefill_events_.update(index, prefill_[index]->next_event().value_or(kNever));
    }
    prefill_touched_.clear();
    for (const std::size_t index : decode_touched_) {
      decode_[index]->start(now);
      decode_router_.changed(index);
      update_decode(index);
      begin_transfers(index, now);
    }
    decode_touched_.clear();
  }
  // To decode replica `to`, for whatever has blocks there now.
  void begin_transfers(std::size_t to, Seconds now) {
    for (const std::int64_t idx : decode_[to]->take_reserved()) {
      const auto request = static_cast<std::size_t>(idx);
      const auto blocks =
          static_cast<double>(transferred_blocks(config_, workload_.requests[request]));
      records_[request].transfer_bytes = config_.kv_block * blocks;
      transfers_.submit(now, idx, records_[request].replica, static_cast<int>(to),
                        config_.kv_block_per_rank * blocks);
    }
  }

  Replicas& prefill_;
  Replicas& decode_;
  const Workload& workload_;
  const DisaggregatedConfig& config_;
  std::span<RequestRecord> records_;
  ProgressCounter& progress_;
  Router prefill_router_{config_.prefill.router, prefill_};
  Router decode_router_{config_.decode.router, decode_};
  bool is_closed_ = workload_.closed_loop_concurrency > 0;
  std::size_t next_ = 0;  // request to send
  std::int64_t num_handovers_ = 0;
  std::priority_queue<Seconds, std::vector<Seconds>, std::greater<>> sends_;  // of a closed loop
  Events prefill_events_;
  Events decode_events_;
  TransferQueue transfers_;
  std::set<std::size_t> prefill_touched_;  // replicas that something happened to at this time
  std::set<std::size_t> decode_touched_;
  std::vector<std::int64_t> finished_;
};

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
  require(decode.router != RouterKind::kPrefixAware,
          "decode replicas have no prefix cache, expected router round_robin or least_loaded");
  check_side("decode", [&] { check_requests(workload, decode); });
  // What a prefill replica computes ends with the first token.
  Workload prompts = workload;
  for (Request& request : prompts.requests) request.output_tokens = 1;
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
  const std::size_t num_pairs = static_cast<std::size_t>(config.prefill.num_replicas) *
                                static_cast<std::size_t>(config.decode.num_replicas);
  require(config.links.size() == num_pairs, "found " + std::to_string(config.links.size()) +
                                                " links, expected one for each pair of replicas, " +
                                                std::to_string(num_pairs));
  assert(config.prefill.step_store == config.decode.step_store);
  ServiceResult result;
  result.step_store = config.prefill.step_store;
  result.requests = new_records(workload);
  Replicas prefill;
  Replicas decode;
  const auto add = [&](Replicas& side, const ServiceConfig& service, ReplicaRole role) {
    for (int i = 0; i < service.num_replicas; ++i) {
      const int index = static_cast<int>(prefill.size() + decode.size());
      side.push_back(std::make_unique<Replica>(
          index, service, workload.hash_block_tokens / service.engine.block_size, workload.requests,
          result.requests, make_backend(index), role));
    }
  };
  add(prefill, config.prefill, ReplicaRole::kPrefill);
  add(decode, config.decode, ReplicaRole::kDecode);

  ProgressCounter counter(progress, static_cast<std::int64_t>(workload.requests.size()));
  DisaggregatedLoop(prefill, decode, workload, config, result.requests, counter).run();

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
  if (arrives_by_itself(workload)) {
    result.metrics.load = load_metrics(result.requests, totals);
  }
  result.metrics.disaggregation =
      disaggregation_metrics(result.requests, std::span(totals).first(prefill.size()),
                             std::span(totals).subspan(prefill.size()));
  return result;
}

}  // namespace orrery
