#pragma once

// Looks on while ranks work: that they come to an end, whatever one of them does. No CUDA.
//
//   a rank throws, a signal comes, NCCL reports an error, or a step takes longer than it may
//     -> all ranks are told to stop -> what their GPUs wait for is aborted
//     -> if they have not stopped `grace` later, or the watch still stands `teardown` after that:
//        last words, and the process ends

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/execute/rank_error.h"
#include "kernels/execute/run_phase.h"
#include "sim/plan/plan.h"
#include "sim/units/units.h"

namespace orrery {

enum class RankPhase : std::uint8_t { kIdle, kEnqueueing, kWaiting };

// Where a rank is. An op that is being enqueued, or a step that the GPU works on. A rank that has
// yet to come is enqueueing no op.
struct RankPlace {
  RankPhase phase = RankPhase::kIdle;
  std::string op;             // kEnqueueing
  std::int64_t progress = 0;  // how far its thread or GPU has come, comparable in a phase
  std::string reached;        // kWaiting: the op that it waits in; empty: not known
};

// Who keeps the others waiting: the rank whose thread is stuck at the earliest op (others may be
// stuck later, in a call that connects them to it), else the one whose GPU is least far.
RankError stall_error(std::span<const RankPlace> ranks, Seconds taken,
                      RunPhase phase = RunPhase::kStep);

// Much longer than the step takes: 3 s and what it takes at a tenth of the GPU's rates.
Seconds step_limit(const Plan& plan);

class Watch {
 public:
  struct Setup {
    int num_ranks = 1;
    // All of these are called from threads of the watch, one at a time.
    std::function<std::exception_ptr()> first_error;   // what a rank has thrown, or null
    std::function<void(std::exception_ptr)> fail;      // all ranks are to stop, and why
    std::function<void()> abort;                       // ends what GPUs wait for; may hang
    std::function<std::exception_ptr()> find_problem;  // errors that no call returned, or null
    std::function<void(int rank, RankPlace& state)> look_at;    // fills progress and reached
    std::function<void(const std::string& status)> last_words;  // failure_status()
    // By the thread that begins it: another phase than the last.
    std::function<void(RunPhase phase)> phase_begun;
    std::function<void()> end_process;  // default: exit code 1 at once, nothing destroyed
    bool heeds_signals = true;
    Seconds grace{1};
    Seconds teardown{1};
  };
  explicit Watch(Setup setup);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // From now on nothing but last_words and end_process is called: what the others refer to may be
  // destroyed. Waits for one that is being called.
  void retire();

  // Around each step or other phase, which takes too long when no rank has come to another op for
  // `limit`, or when it has taken `most` in all. begin() throws std::runtime_error when a signal
  // has come. What a rank failed with is for the caller to throw, and to give to fail() before
  // end(): ranks may have stopped before the watch has looked. Where ranks work apart from each
  // other (is_apart), the error of one does not stop the others.
  void begin(Seconds limit, Seconds most, RunPhase phase = RunPhase::kStep);
  void end();
  void fail(std::exception_ptr error);
  // That the rank has something to do from now on, before its thread says what.
  void expect(int rank) { set(rank, RankPhase::kEnqueueing, nullptr); }
  // By the thread of the rank; `op` must live until the next call.
  void enqueueing(int rank, const std::string& op) { set(rank, RankPhase::kEnqueueing, &op); }
  void waiting(int rank) { set(rank, RankPhase::kWaiting, nullptr); }
  void idle(int rank) { set(rank, RankPhase::kIdle, nullptr); }

 private:
  struct Rank {
    std::atomic<RankPhase> phase{RankPhase::kIdle};
    std::atomic<const std::string*> op{nullptr};
    std::atomic<std::uint64_t> moves{0};  // from op to op and from phase to phase
    std::atomic<std::int64_t> ops{0};     // enqueued in this step
  };
  void set(int rank, RankPhase phase, const std::string* op) {
    Rank& place = ranks_[static_cast<std::size_t>(rank)];
    place.op.store(op, std::memory_order_release);
    place.phase.store(phase, std::memory_order_release);
    place.moves.fetch_add(1, std::memory_order_relaxed);
    if (phase == RankPhase::kEnqueueing) {
      place.ops.fetch_add(1, std::memory_order_relaxed);
    } else {
      place.ops.store(0, std::memory_order_relaxed);
    }
  }
  void look(const std::stop_token& stop);
  std::exception_ptr find_trouble(bool is_in_step);
  // `error` is null for a step that takes too long.
  void stop_ranks(const std::stop_token& stop, std::exception_ptr error);
  std::exception_ptr stall(bool looks);
  [[nodiscard]] bool is_enqueueing() const;
  [[nodiscard]] std::uint64_t num_moves() const;  // of all ranks
  std::exception_ptr failure();

  // Calls a callback that is there, unless retired.
  template <typename Callback, typename... Arguments>
  auto call(const Callback& callback, Arguments&&... arguments)
      -> decltype(callback(std::forward<Arguments>(arguments)...));

  Setup setup_;
  std::mutex mutex_;         // held while a callback runs
  bool is_retired_ = false;  // guarded by mutex_
  std::mutex failure_mutex_;
  std::exception_ptr failure_;  // guarded by failure_mutex_
  std::unique_ptr<Rank[]> ranks_;
  std::atomic<double> deadline_{0};  // of the step, host's clock in seconds; 0: between steps
  std::atomic<double> limit_{0};
  std::atomic<RunPhase> phase_{RunPhase::kStart};
  bool has_begun_ = false;        // any phase; by the thread that begins them
  std::atomic<double> begun_{0};  // the step, by the same clock
  std::jthread thread_;           // last: it uses the above
};

}  // namespace orrery
