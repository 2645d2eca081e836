#pragma once

// Programs of the megakernel beside what the executor runs: the interpreter with the weights that
// the GPUs have.

#include <cstdint>

#include "sim/megakernel/interpreter.h"
#include "sim/plan/plan.h"

namespace orrery::reference {

// `plan` outlives it: of one rank. `seed` of the weights, as in ExecutorSetup.
megakernel::InterpreterSetup interpreter_setup(const Plan& plan, std::uint64_t seed = 1);

}  // namespace orrery::reference
