#pragma once

// Ops of one expert in double: expert_gather and expert_gemm.

#include <cstdint>
#include <string_view>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {

// What stands in the result, zeros where nothing does, with the rows of the op's expert out of
// `rows`, which has those of all experts.
Results with_expert_rows(const KernelCall& call, const Values& rows, std::string_view result,
                         std::int64_t columns);

}  // namespace orrery::reference
