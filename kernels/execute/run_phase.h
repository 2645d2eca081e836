#pragma once

// The phases of a run, in each of which a rank may fail or stop going on. No CUDA.

#include <cstdint>
#include <optional>
#include <string_view>

#include "sim/units/units.h"

namespace orrery {

enum class RunPhase : std::uint8_t {
  kStart,          // processes find each other, GPUs and contexts are there
  kCommunicators,  // ranks are connected
  kWeights,        // weights, caches and tables
  kPrepare,        // a step is bound to memory
  kWarmUp,         // the first run of a step
  kCapture,        // a step becomes a graph
  kStep,           // any later run of it
  kTransfer,       // a KV cache goes to another replica
  kCall,           // a single kernel is checked or timed
  kResults,        // files are written
  kTeardown,       // what the run holds is given back
};

// As faults name it: "warm_up".
std::string_view to_text(RunPhase phase);
// Throws std::invalid_argument with the known names.
RunPhase parse_run_phase(std::string_view text);
// Whether no rank waits for another in it: all can go on after an error of one.
bool is_apart(RunPhase phase);
// How long a rank may stay at one place of it: generous, and at most `most` where that is given.
// Steps have limits of their own (step_limit).
Seconds phase_limit(RunPhase phase, std::optional<Seconds> most);

}  // namespace orrery
