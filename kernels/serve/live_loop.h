#pragma once

// Turns a ServiceLoop (sim/serve/service_loop.h) against the clock. What takes time, a step or KV
// blocks that move, is work of threads, which have the loop's lock but while GPUs are busy:
//
//   a thread:  [ lock | turn: step formed ][ unlocked: GPUs ][ lock | its end is now; turn ] ...
//   another:                                [ lock | turn ]                    (waits)
//
// Ends are read off the clock with the lock held, so nothing later has been turned to before them:
// events are in the order of their times, as in virtual time.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "kernels/serve/live_clock.h"
#include "sim/serve/service_loop.h"
#include "sim/units/units.h"

namespace orrery {

// Gives a lock that the caller holds up for as long as it lives.
class Unlocked {
 public:
  explicit Unlocked(std::mutex& held) : mutex_(held) { mutex_.unlock(); }
  ~Unlocked() { mutex_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  std::mutex& mutex_;
};

// One run.
class LiveLoop {
 public:
  using Work = std::function<void()>;

  // `clock` outlives it.
  LiveLoop(const LiveClock& clock, std::size_t num_threads);

  // Serves `arrivals` (ServiceLoop::begin) until all have finished, work throws, or `is_stopped`
  // (may be empty; asked at least 50 times a second) says so; work that runs then is finished, and
  // no other begun.
  void run(ServiceLoop& loop, std::span<const std::int64_t> arrivals,
           const std::function<bool()>& is_stopped);
  // Of the loop, its replicas and all that they serve.
  [[nodiscard]] std::mutex& mutex() { return mutex_; }
  // Called with the lock held, as is `work`: thread `thread` does it after what it was given
  // before.
  void give(std::size_t thread, Work work);
  // Whether work is not begun any more; the lock is held.
  [[nodiscard]] bool is_stopped() const { return is_stopped_; }
  // What ended the run early.
  [[nodiscard]] std::exception_ptr error() const { return error_; }

 private:
  struct Worker {
    std::condition_variable woken;
    std::deque<Work> work;
    std::jthread thread;
  };

  void work_until_stopped(Worker& worker);
  void turn_until_done(std::unique_lock<std::mutex>& lock, const std::function<bool()>& is_stopped);
  // To all that is due.
  void turn();
  // Until something is due or has changed, for 20 ms at most.
  void wait(std::unique_lock<std::mutex>& lock);
  void stop();
  // The lock is held.
  template <typename Call>
  void keep_error(const Call& call);

  const LiveClock& clock_;
  ServiceLoop* loop_ = nullptr;
  std::int64_t num_requests_ = 0;

  std::mutex mutex_;                  // of what follows but for `due_`
  std::condition_variable changed_;   // of whoever waits for the clock
  std::atomic<Seconds> due_{kNever};  // ServiceLoop::next()
  bool is_stopped_ = false;
  std::exception_ptr error_;
  std::vector<std::unique_ptr<Worker>> workers_;  // last: they use all above
};

}  // namespace orrery
