#pragma once

// A prefill or decode replica on a thread of its own, against the clock. Other threads may change
// it between its steps and, since it gives up its lock while a step is computed, during one: that
// is how blocks are set aside and given back while the GPU is busy.
//
//   thread: [ lock | schedule ][ unlocked: step ][ lock | apply the step ][ unlocked: tell ] ...
//   others:                      apply(change)                             apply(change)

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "kernels/serve/executed_steps.h"
#include "kernels/serve/live_clock.h"
#include "kernels/serve/step_runner.h"
#include "sim/serve/replica.h"

namespace orrery {

class DisaggregatedReplica {
 public:
  // A request that has its first token: what the decode side needs of it.
  struct Package {
    Handover handover;
    int prefill = 0;                   // index of the replica
    std::vector<std::int32_t> tokens;  // prompt and first token
    std::vector<std::int32_t> blocks;  // of the prompt, there
  };
  // What came of a step. `told` is called without the lock and may call any replica.
  struct Outcome {
    std::vector<std::int64_t> finished;
    std::vector<Package> handed_over;
  };
  using Told = std::function<void(const Outcome&)>;
  // Blocks are set aside for a request; called with the lock held, and may call `steps()`.
  using Reserved = std::function<void(std::int64_t request)>;

  struct Setup {
    int index = 0;
    ReplicaRole role = ReplicaRole::kPrefill;
    const ServiceConfig* service = nullptr;
    ExecutedStepsConfig steps;
    StepRunner* runner = nullptr;
    std::span<const Request> requests;
    std::span<RequestRecord> records;
    const LiveClock* clock = nullptr;
    Told told;
    Reserved reserved;
  };
  // What `setup` points to outlives it.
  explicit DisaggregatedReplica(Setup setup);
  // Stops and waits.
  ~DisaggregatedReplica();
  DisaggregatedReplica(const DisaggregatedReplica&) = delete;
  DisaggregatedReplica& operator=(const DisaggregatedReplica&) = delete;

  void start();
  // A client sends a request, perhaps in the future.
  void send(Seconds at, std::int64_t request);
  // Calls `change` now, between steps or during one; `now` is not before what came before.
  void apply(const std::function<void(Replica&, Seconds now)>& change);
  // The thread ends after the step that runs now.
  void stop();
  void join();

  [[nodiscard]] std::exception_ptr error() const;
  [[nodiscard]] std::int64_t outstanding_tokens() const;
  // With the lock held (in `reserved`), or when the thread does not run.
  [[nodiscard]] ExecutedSteps& steps() { return *steps_; }
  [[nodiscard]] Replica& replica() { return *replica_; }

 private:
  // Computes without the lock.
  class UnlockedRunner : public StepRunner {
   public:
    UnlockedRunner(DisaggregatedReplica& owner, StepRunner& runner)
        : owner_(owner), runner_(runner) {}
    void capture(std::int64_t rows) override { runner_.capture(rows); }
    std::vector<std::int32_t> run(const StepInput& input, std::int64_t graph_rows) override;

   private:
    DisaggregatedReplica& owner_;
    StepRunner& runner_;
  };
  struct Sent {
    Seconds at;
    std::int64_t request = 0;
  };

  void run();
  void serve_until_stopped();
  // Applies what is due; true when something was.
  bool apply_due(Outcome& outcome);
  void tell_reserved();
  void wait(std::unique_lock<std::mutex>& lock);

  Setup setup_;
  UnlockedRunner runner_;
  ExecutedSteps* steps_ = nullptr;  // the replica's
  std::unique_ptr<Replica> replica_;

  mutable std::mutex mutex_;  // of all that follows, and of the replica
  std::condition_variable woken_;
  std::deque<Sent> sent_;  // by time
  Seconds last_event_;
  bool is_changed_ = false;  // a step may be possible that was not
  bool is_woken_ = false;
  bool is_stopped_ = false;
  std::exception_ptr error_;
  std::jthread thread_;
};

}  // namespace orrery
