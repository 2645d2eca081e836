#pragma once

// One expert's rows through its weights, of as many rows as the host knows there are.

#include "kernels/dense/gemm/gemm.h"
#include "kernels/experts/expert_gather/expert_rows.h"

namespace orrery {

// Launches `plan`, whose m is rows.count, on rows [rows.first, rows.first + rows.count) of
// operands.x [all rows, k] and operands.y [all rows, n] with weights `expert` of operands.w
// [experts, n, k]; scales, of fp8, are of all rows and of all experts' columns. Rows of x and y
// must be multiples of 16 bytes. `scales`: memory for those of the rows, 16-byte aligned, which
// cuBLASLt needs where their own begin elsewhere: a copy of them precedes the gemm then. Throws as
// GemmPlan::launch does.
void expert_gemm(const cuda::Stream& stream, const GemmPlan& plan, const ExpertRows& rows,
                 std::int64_t expert, const GemmOperands& operands, float* scales);

}  // namespace orrery
