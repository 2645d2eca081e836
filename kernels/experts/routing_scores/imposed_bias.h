#pragma once

// The bias that a load of experts adds to a router's logits, on a rank's GPU.

#include <cstdint>

#include "kernels/binding/bind_context.h"
#include "kernels/cuda/dtypes.h"

namespace orrery {

// Routing::bias as [experts], what it was when the rank first asked for it, in memory that stays;
// null where there is none. Throws std::invalid_argument unless it is one for each expert.
const bf16* imposed_bias(const BindContext& context, std::int64_t experts);

}  // namespace orrery
