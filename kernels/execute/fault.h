#pragma once

// A failure made on purpose, to test that a run ends as it should. No CUDA.

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/execute/run_phase.h"

namespace orrery {

inline constexpr const char* kFaultMark = "made to fail";

enum class FaultKind : std::uint8_t {
  kThrow,  // the rank's thread throws before it enqueues the op
  kHang,   // the rank's thread never goes on
  kKill,   // the process gets SIGKILL
  kNan,    // what the op wrote becomes NaN
  kNccl,   // a call of NCCL fails
  kStall,  // the rank's GPU never goes on, its thread does
};

struct Fault {
  int rank = 0;
  std::string op;  // as in the plan; each copy of a repeat, too; empty: in a phase
  FaultKind kind = FaultKind::kThrow;
  int run = 1;  // at the n-th time that the rank comes to the op or the phase
  std::optional<RunPhase> phase = std::nullopt;
};

// "rank=1,op=layers.0.o_proj,how=throw" and optionally ",run=3"; or "phase=weights" in place of the
// op, where a rank may throw, hang or be killed. Throws std::invalid_argument for an unknown or
// missing key or value.
Fault parse_fault(std::string_view text);

// In the thread of the rank: prints kFaultMark to stderr; then kThrow throws std::runtime_error,
// kHang does not return, kKill ends the process. Others do nothing more.
void inject_in_thread(FaultKind kind);

// Makes the fault of a phase, if that is one. Any thread.
class PhaseFault {
 public:
  explicit PhaseFault(std::optional<Fault> fault) : fault_(std::move(fault)) {}
  // `rank` comes to `phase`.
  void reach(int rank, RunPhase phase);

 private:
  std::optional<Fault> fault_;
  std::atomic<int> times_{0};
};

}  // namespace orrery
