#pragma once

// Few and small calls of a kernel that between them launch all that its host may choose: for tools
// under which a call takes a thousand times as long. No CUDA.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "sim/plan/plan.h"

namespace orrery {

struct CallCandidate {
  double work = 0;        // call_work()
  std::string signature;  // what the host chose for it: device functions and how they are launched
};

// How long a call takes under such a tool, roughly: a byte that is moved, or 64 FLOPs, as one.
// Throws as work_of().
double call_work(const KernelOp& op);

// What a call's form adds to what it launches: its dtype, the dims besides those of its spec (which
// select variants), and the way that the spec says it takes. Throws as kernel_spec().
std::string call_form(const KernelOp& op);

// Of each signature the call of least work, and, if there is another, that of most work up to
// `most_work`: loops that go round. Places in `calls`, ascending; of equals the first.
std::vector<std::size_t> small_calls(std::span<const CallCandidate> calls, double most_work);

}  // namespace orrery
