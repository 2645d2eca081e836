#pragma once

// The fastest way to do a gemm on the current device, by timing.

#include "kernels/dense/gemm/choice.h"

namespace orrery {

// Times streaming_candidates() and cuBLASLt's proposals on random operands in turn, cold L2. The
// answer is kept for the process, by device, shape and overlap (GemmOptions), so that equal plans
// always get equal kernels. Takes 10 to 500 ms and memory for the operands once per shape;
// synchronises. Not while a stream of this thread is being captured. Throws std::invalid_argument
// when no kernel takes the shape, cuda::Error.
GemmChoice tuned_choice(const GemmShape& shape, bool overlap);

}  // namespace orrery
