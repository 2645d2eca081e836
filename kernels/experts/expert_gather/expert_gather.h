#pragma once

// One expert's rows of gather_mul, of as many as the host knows there are.

#include <cstdint>

#include "kernels/experts/expert_gather/expert_rows.h"
#include "kernels/experts/gather_mul/gather_mul.h"

namespace orrery {

// Writes rows [rows.first, rows.first + rows.count) of xs (bf16, or fp8 with a scale for each row)
// as gather_mul() writes all; `from` is of all rows, dense, its num_rows not read. Launches nothing
// for no rows. Throws as gather_mul does.
void expert_gather(const cuda::Stream& stream, const GatheredTokens& from, const ExpertRows& rows,
                   bf16* xs);
void expert_gather_fp8(const cuda::Stream& stream, const GatheredTokens& from,
                       const ExpertRows& rows, fp8* xs, float* scales);

}  // namespace orrery
