#include "kernels/serve/live_replica.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

namespace orrery {

LiveReplica::LiveReplica(std::unique_ptr<Replica> replica, std::span<RequestRecord> records,
                         const LiveClock& clock, OnFinished on_finished)
    : replica_(std::move(replica)),
      records_(records),
      clock_(clock),
      on_finished_(std::move(on_finished)) {}

LiveReplica::~LiveReplica() {
  stop();
  join();
}

void LiveReplica::start() {
  thread_ = std::jthread([this] { run(); });
}

std::int64_t LiveReplica::tokens_of(std::int64_t request) const {
  const RequestRecord& record = records_[static_cast<std::size_t>(request)];
  return record.prompt_tokens + record.output_tokens - 1;
}

void LiveReplica::send(std::span<const Sent> requests) {
  for (const Sent& sent : requests) unseen_ += tokens_of(sent.request);
  {
    const std::scoped_lock lock(mutex_);
    inbox_.insert(inbox_.end(), requests.begin(), requests.end());
  }
  changed_.notify_one();
}

void LiveReplica::close() {
  {
    const std::scoped_lock lock(mutex_);
    is_closed_ = true;
  }
  changed_.notify_one();
}

void LiveReplica::stop() {
  {
    const std::scoped_lock lock(mutex_);
    is_stopped_ = true;
  }
  changed_.notify_one();
}

void LiveReplica::join() {
  if (thread_.joinable()) thread_.join();
}

std::exception_ptr LiveReplica::error() const {
  const std::scoped_lock lock(mutex_);
  return error_;
}

void LiveReplica::run() {
  try {
    serve_until_done();
  } catch (...) {  // whoever joins asks for it
    const std::scoped_lock lock(mutex_);
    error_ = std::current_exception();
  }
}

void LiveReplica::serve_until_done() {
  std::vector<std::int64_t> finished;
  while (wait()) {
    take_inbox();
    while (const std::optional<Seconds> at = apply_due(finished)) {
      if (!finished.empty()) {
        on_finished_(finished);
        finished.clear();
      }
      // A client may have sent its next request with the last token of the one before.
      take_inbox();
      if (!pending_.empty() && pending_.front().at <= *at) continue;
      outstanding_ = replica_->outstanding_tokens(*at);
      {
        const std::scoped_lock lock(mutex_);
        if (is_stopped_) return;
      }
      replica_->start(*at);
      take_inbox();
    }
  }
}

// In the order of serve(): requests that clients send come before what happens in the replica.
std::optional<Seconds> LiveReplica::apply_due(std::vector<std::int64_t>& finished) {
  const std::optional<Seconds> event = replica_->next_event();
  const Seconds now = clock_.now();
  if (!pending_.empty() && pending_.front().at <= now &&
      (!event || pending_.front().at <= *event)) {
    // One that was sent later than its own time waits for the events in between.
    const Seconds at = std::max(pending_.front().at, last_event_);
    for (; !pending_.empty() && pending_.front().at <= at; pending_.pop_front()) {
      const Sent& sent = pending_.front();
      replica_->submit(at, sent.request);
      unseen_ -= tokens_of(sent.request);
      outstanding_ += tokens_of(sent.request);
      records_[static_cast<std::size_t>(sent.request)].arrival = sent.at;
    }
    last_event_ = at;
    return at;
  }
  if (!event || *event > now) return std::nullopt;
  replica_->advance(*event, finished);
  last_event_ = *event;
  return event;
}

void LiveReplica::take_inbox() {
  const std::scoped_lock lock(mutex_);
  for (const Sent& sent : inbox_) {
    pending_.insert(std::ranges::upper_bound(pending_, sent.at, {}, &Sent::at), sent);
  }
  inbox_.clear();
}

std::optional<Seconds> LiveReplica::next_due() const {
  const std::optional<Seconds> event = replica_->next_event();
  if (pending_.empty()) return event;
  return event ? std::min(*event, pending_.front().at) : pending_.front().at;
}

bool LiveReplica::wait() {
  constexpr Seconds kCoarse(200e-6);  // sleeping is coarser than this
  const std::optional<Seconds> due = next_due();
  std::unique_lock lock(mutex_);
  const auto is_woken = [this] { return is_stopped_ || !inbox_.empty(); };
  if (!due) {
    changed_.wait(lock, [&] { return is_woken() || is_closed_; });
    return !is_stopped_ && !inbox_.empty();
  }
  const Seconds left = *due - clock_.now();
  if (left > kCoarse) {
    changed_.wait_for(lock, std::chrono::duration<double>((left - kCoarse).value()), is_woken);
  }
  if (is_stopped_) return false;
  if (!inbox_.empty()) return true;
  lock.unlock();
  clock_.wait_until(*due);
  return true;
}

}  // namespace orrery
