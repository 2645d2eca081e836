#pragma once

// broadcast: tensors that arrive on other ranks as they are.

#include "kernels/execute/collective_binding.h"

namespace orrery {

// As bind_collective says.
Launch bind_broadcast(const CollectiveContext& context);

}  // namespace orrery
