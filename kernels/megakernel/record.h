#pragma once

// When the instructions of a forward ran. No CUDA.

#include <cstdint>
#include <vector>

#include "sim/megakernel/instruction.h"

namespace orrery::megakernel {

// Times of one instruction on one SM, in its clock's cycles, by the first thread that computes.
struct Record {
  std::int64_t start = 0;
  std::int64_t ready = 0;  // all that it waits for has come
  std::int64_t end = 0;
  std::int64_t weights = 0;  // of these: waiting for weights or keys
};

// Of one forward: its instructions by SM, with their times.
struct TimedInstruction {
  Instruction instruction;
  Record record;
};
using TimedProgram = std::vector<std::vector<TimedInstruction>>;

}  // namespace orrery::megakernel
