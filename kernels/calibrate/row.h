#pragma once

// One finished measurement of calibration. No CUDA.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/harness/measurement.h"
#include "sim/plan/plan.h"
#include "sim/units/units.h"

namespace orrery::calibrate {

// The state in which a point is timed.
struct State {
  L2State l2 = L2State::kCold;
  LaunchMode mode = LaunchMode::kGraph;
  bool operator==(const State&) const = default;
};
std::string_view l2_text(L2State l2);                           // "cold", "warm"
State parse_state(std::string_view l2, std::string_view mode);  // throws std::invalid_argument

// Board power under this call alone, back to back, and its time then: clocks follow the power cap.
struct Sustained {
  Watts power;
  Seconds time;
};

struct Row {
  KernelOp op;
  State state;
  // Why the kernel or the device refused the call, empty for a measurement; what follows is then 0.
  std::string refusal;
  Seconds time;       // median
  double spread = 0;  // interquartile range / median
  int samples = 0;
  int discarded = 0;          // samples taken while throttled
  int sm_clock_mhz = 0;       // while the last samples ran; 0: not known
  bool power_capped = false;  // the power cap throttled the clock while they ran
  std::optional<Sustained> sustained;
  Seconds cost;  // of the whole point on the host's clock, set-up included
};

// "gemm bf16 m=1 n=2 k=3", the dims in the order of the op.
std::string op_text(const KernelOp& op);
// "m=1 n=2 k=3" as dims. Throws std::invalid_argument.
Dims parse_dims(std::string_view text);
// What makes two rows measurements of the same thing.
std::string key(const KernelOp& op, State state);

}  // namespace orrery::calibrate
