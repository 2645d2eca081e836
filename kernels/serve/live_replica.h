#pragma once

// One replica on a thread of its own, against the clock: requests reach it when they are sent, and
// a step takes as long as its backend takes to run it. Times in the records are those of the clock.
//
//   send(at, request) ──► inbox ──► Replica ── start(): the backend runs the step ──► on_finished
//                                      ▲                          │
//                                      └── advance() at its end ◄─┘
//
// send, close, stop and the observers may be called from any thread.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "kernels/serve/live_clock.h"
#include "sim/serve/replica.h"

namespace orrery {

class LiveReplica {
 public:
  struct Sent {
    Seconds at;
    std::int64_t request = 0;
  };
  // Called on the replica's thread with the requests that have just finished (their records are
  // final), before its next step begins; it may send.
  using OnFinished = std::function<void(std::span<const std::int64_t> finished)>;

  // `records`: those that `replica` fills. They, `clock` and whatever `on_finished` uses outlive
  // it.
  LiveReplica(std::unique_ptr<Replica> replica, std::span<RequestRecord> records,
              const LiveClock& clock, OnFinished on_finished);
  // Stops and waits.
  ~LiveReplica();
  LiveReplica(const LiveReplica&) = delete;
  LiveReplica& operator=(const LiveReplica&) = delete;

  // Its thread begins.
  void start();
  // Requests that clients send together or one by one, perhaps in the future: the replica knows of
  // each when its time has come.
  void send(std::span<const Sent> requests);
  // No more are sent: the thread ends when all have finished.
  void close();
  // The thread ends after the step that runs now, whatever waits.
  void stop();
  // Waits for the thread's end.
  void join();

  // Set when the thread ended by what its backend or on_finished threw.
  [[nodiscard]] std::exception_ptr error() const;
  // Tokens still to be computed for all requests sent to it; those of running ones as of the last
  // event.
  [[nodiscard]] std::int64_t outstanding_tokens() const { return outstanding_ + unseen_; }
  // Only when the thread does not run.
  [[nodiscard]] Replica& replica() { return *replica_; }

 private:
  void run();
  void serve_until_done();
  // Applies what is due; the time of it, or nothing when everything lies in the future.
  std::optional<Seconds> apply_due(std::vector<std::int64_t>& finished);
  // When something is due next here.
  [[nodiscard]] std::optional<Seconds> next_due() const;
  // Waits until then, or for the inbox; false when the thread is to end.
  bool wait();
  void take_inbox();
  [[nodiscard]] std::int64_t tokens_of(std::int64_t request) const;

  std::unique_ptr<Replica> replica_;
  std::span<RequestRecord> records_;
  const LiveClock& clock_;
  OnFinished on_finished_;

  std::deque<Sent> pending_;  // taken from the inbox, by time
  Seconds last_event_;
  std::atomic<std::int64_t> outstanding_ = 0;
  std::atomic<std::int64_t> unseen_ = 0;  // tokens of requests in the inbox and pending

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<Sent> inbox_;
  bool is_closed_ = false;
  bool is_stopped_ = false;
  std::exception_ptr error_;
  std::jthread thread_;
};

}  // namespace orrery
