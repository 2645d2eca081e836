#pragma once

// Looks on while one thread goes through the phases of a run that have no executor to look on
// (watch.h): that each comes to an end, and whose fault it is where one does not. No CUDA.

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "kernels/execute/fault.h"
#include "kernels/execute/run_phase.h"
#include "kernels/execute/watch.h"
#include "sim/units/units.h"

namespace orrery {

class RunWatch {
 public:
  struct Setup {
    int rank = 0;                  // what the thread works for
    std::optional<Fault> fault;    // for tests: of that rank, in one of these phases
    std::optional<Seconds> limit;  // of every phase, where its own is longer
    // failure_status(), before the process ends with exit code 1; default: a line on stderr.
    std::function<void(const std::string& status)> last_words;
    std::function<void()> end_process;  // as in Watch::Setup
    Seconds grace{1};                   // likewise
  };
  explicit RunWatch(Setup setup);

  // What work() returns. An error that is no RankError and no std::invalid_argument becomes a
  // RankError of the rank, of `op` where one is named, and says the phase. When work() does not
  // return within the phase's limit: last words, and the process ends. One thread at a time, phases
  // one after the other.
  template <typename Work>
  auto run(RunPhase phase, const Work& work, const std::string& op = {}) {
    const Phase guard(*this, phase, op);
    try {
      fault_.reach(setup_.rank, phase);
      return work();
    } catch (...) {  // named, and thrown again
      rethrow_in_phase(setup_.rank, phase, op);
    }
  }

 private:
  class Phase {
   public:
    Phase(RunWatch& of, RunPhase phase, const std::string& op);
    ~Phase();
    Phase(const Phase&) = delete;
    Phase& operator=(const Phase&) = delete;

   private:
    RunWatch& of_;
  };

  Setup setup_;
  PhaseFault fault_;
  Watch watch_;
};

// What status.txt says while a run goes on, and so what is left by one that was killed: the
// furthest phase that it came to. Thread safe.
class UnfinishedStatus {
 public:
  // `write` gets the line whenever it changes.
  explicit UnfinishedStatus(std::function<void(const std::string& status)> write)
      : write_(std::move(write)) {}
  void begun(RunPhase phase);

 private:
  std::function<void(const std::string& status)> write_;
  std::mutex mutex_;
  std::optional<RunPhase> furthest_;  // guarded by mutex_
};

}  // namespace orrery
