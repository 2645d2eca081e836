#pragma once

// A failure made on purpose, to test that a run ends as it should. No CUDA.

#include <cstdint>
#include <string>
#include <string_view>

namespace orrery {

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
  std::string op;  // as in the plan; each copy of a repeat, too
  FaultKind kind = FaultKind::kThrow;
  int run = 1;  // at the n-th time that the rank comes to the op
};

// "rank=1,op=layers.0.o_proj,how=throw" and optionally ",run=3". Throws std::invalid_argument for
// an unknown or missing key or value.
Fault parse_fault(std::string_view text);

}  // namespace orrery
