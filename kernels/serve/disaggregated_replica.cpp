#include "kernels/serve/disaggregated_replica.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <utility>

namespace orrery {

std::vector<std::int32_t> DisaggregatedReplica::UnlockedRunner::run(const StepInput& input,
                                                                    std::int64_t graph_rows) {
  // Transfers into blocks that became free with this step begin beside it.
  owner_.tell_reserved();
  struct Unlocked {
    std::mutex& mutex;
    explicit Unlocked(std::mutex& held) : mutex(held) { mutex.unlock(); }
    ~Unlocked() { mutex.lock(); }
  };
  const Unlocked unlocked(owner_.mutex_);
  return runner_.run(input, graph_rows);
}

DisaggregatedReplica::DisaggregatedReplica(Setup setup)
    : setup_(std::move(setup)), runner_(*this, *setup_.runner) {
  auto steps =
      std::make_unique<ExecutedSteps>(setup_.steps, setup_.requests, runner_, *setup_.clock);
  steps_ = steps.get();
  replica_ = std::make_unique<Replica>(setup_.index, *setup_.service, 0, setup_.requests,
                                       setup_.records, std::move(steps), setup_.role);
}

DisaggregatedReplica::~DisaggregatedReplica() {
  stop();
  join();
}

void DisaggregatedReplica::start() {
  thread_ = std::jthread([this] { run(); });
}

void DisaggregatedReplica::send(Seconds at, std::int64_t request) {
  {
    const std::scoped_lock lock(mutex_);
    sent_.insert(std::ranges::upper_bound(sent_, at, {}, &Sent::at),
                 {.at = at, .request = request});
    is_woken_ = true;
  }
  woken_.notify_one();
}

void DisaggregatedReplica::apply(const std::function<void(Replica&, Seconds now)>& change) {
  {
    const std::scoped_lock lock(mutex_);
    last_event_ = std::max(last_event_, setup_.clock->now());
    change(*replica_, last_event_);
    tell_reserved();
    is_changed_ = true;
    is_woken_ = true;
  }
  woken_.notify_one();
}

void DisaggregatedReplica::stop() {
  {
    const std::scoped_lock lock(mutex_);
    is_stopped_ = true;
  }
  woken_.notify_one();
}

void DisaggregatedReplica::join() {
  if (thread_.joinable()) thread_.join();
}

std::exception_ptr DisaggregatedReplica::error() const {
  const std::scoped_lock lock(mutex_);
  return error_;
}

std::int64_t DisaggregatedReplica::outstanding_tokens() const {
  const std::scoped_lock lock(mutex_);
  std::int64_t tokens = replica_->outstanding_tokens(last_event_);
  for (const Sent& sent : sent_) {
    tokens += setup_.requests[static_cast<std::size_t>(sent.request)].prompt_tokens;
  }
  return tokens;
}

void DisaggregatedReplica::run() {
  try {
    serve_until_stopped();
  } catch (...) {  // whoever waits asks for it
    const std::scoped_lock lock(mutex_);
    error_ = std::current_exception();
  }
}

void DisaggregatedReplica::serve_until_stopped() {
  std::unique_lock lock(mutex_);
  while (!is_stopped_) {
    is_woken_ = false;
    Outcome outcome;
    if (apply_due(outcome)) {
      is_changed_ = true;
      if (!outcome.finished.empty() || !outcome.handed_over.empty()) {
        lock.unlock();
        setup_.told(outcome);
        lock.lock();
        continue;  // clients may have sent their next requests meanwhile
      }
    }
    if (!is_changed_) {
      wait(lock);
      continue;
    }
    is_changed_ = false;
    replica_->start(last_event_);
    tell_reserved();
  }
}

bool DisaggregatedReplica::apply_due(Outcome& outcome) {
  const Seconds now = setup_.clock->now();
  bool has_applied = false;
  for (; !sent_.empty() && sent_.front().at <= now; sent_.pop_front()) {
    const Sent sent = sent_.front();
    last_event_ = std::max(last_event_, sent.at);
    replica_->submit(last_event_, sent.request);
    setup_.records[static_cast<std::size_t>(sent.request)].arrival = sent.at;
    has_applied = true;
  }
  const std::optional<Seconds> event = replica_->next_event();
  if (!event || *event > now) return has_applied;
  replica_->advance(*event, outcome.finished);
  last_event_ = std::max(last_event_, *event);
  for (const Handover& handover : replica_->take_handovers()) {
    const auto tokens = steps_->tokens(handover.idx);
    const auto blocks = steps_->blocks(handover.idx);
    outcome.handed_over.push_back({.handover = handover,
                                   .prefill = setup_.index,
                                   .tokens = {tokens.begin(), tokens.end()},
                                   .blocks = {blocks.begin(), blocks.end()}});
  }
  return true;
}

void DisaggregatedReplica::tell_reserved() {
  for (const std::int64_t request : replica_->take_reserved()) setup_.reserved(request);
}

void DisaggregatedReplica::wait(std::unique_lock<std::mutex>& lock) {
  constexpr Seconds kCoarse(200e-6);  // sleeping is coarser than this
  std::optional<Seconds> due = replica_->next_event();
  if (!sent_.empty()) due = due ? std::min(*due, sent_.front().at) : sent_.front().at;
  const auto is_due = [this] { return is_stopped_ || is_woken_; };
  if (!due) {
    woken_.wait(lock, is_due);
    return;
  }
  const Seconds left = *due - setup_.clock->now();
  if (left > kCoarse) {
    woken_.wait_for(lock, std::chrono::duration<double>((left - kCoarse).value()), is_due);
    return;
  }
  lock.unlock();
  setup_.clock->wait_until(*due);
  lock.lock();
}

}  // namespace orrery
