#include "kernels/execute/run_phase.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

namespace orrery {
namespace {

struct PhaseTraits {
  RunPhase phase = RunPhase::kStart;
  std::string_view name;
  bool is_apart = false;
  Seconds limit{60};
};

// Weights of a whole GPU take seconds; results may go to a slow file system; a call that is checked
// has its reference computed by one thread in double precision.
constexpr std::array<PhaseTraits, 11> kPhases = {{
    {RunPhase::kStart, "start", true},
    {RunPhase::kCommunicators, "communicators", false},
    {RunPhase::kWeights, "weights", true, Seconds(120)},
    {RunPhase::kPrepare, "prepare", true},
    {RunPhase::kWarmUp, "warm_up", false},
    {RunPhase::kCapture, "capture", false},
    {RunPhase::kStep, "step", false},
    {RunPhase::kTransfer, "transfer", true},
    {RunPhase::kCall, "call", true, Seconds(300)},
    {RunPhase::kResults, "results", true, Seconds(120)},
    {RunPhase::kTeardown, "teardown", true},
}};

const PhaseTraits& traits(RunPhase phase) {
  return *std::ranges::find(kPhases, phase, &PhaseTraits::phase);
}

}  // namespace

std::string_view to_text(RunPhase phase) { return traits(phase).name; }

RunPhase parse_run_phase(std::string_view text) {
  const auto found = std::ranges::find(kPhases, text, &PhaseTraits::name);
  if (found != kPhases.end()) return found->phase;
  std::string known;
  for (const PhaseTraits& one : kPhases) known.append(known.empty() ? "" : ", ").append(one.name);
  throw std::invalid_argument("fault: phase is '" + std::string(text) + "', expected one of " +
                              known);
}

bool is_apart(RunPhase phase) { return traits(phase).is_apart; }

Seconds phase_limit(RunPhase phase, std::optional<Seconds> most) {
  const Seconds limit = traits(phase).limit;
  return most ? std::min(limit, *most) : limit;
}

}  // namespace orrery
