#pragma once

// Launches of the traced kernel.

#include "kernels/cuda/launch.h"
#include "kernels/experts/fused_moe/parts_sm90.cuh"
#include "kernels/experts/fused_moe/trace_sm90.cuh"

namespace orrery::fused_moe {

// T is bf16 or fp8, what experts multiply.
template <typename T>
void launch_traced(const cuda::Stream& stream, const cuda::LaunchShape& launch_shape,
                   const Maps& maps, const Arguments& arguments, const TraceBuffers& to);

}  // namespace orrery::fused_moe
