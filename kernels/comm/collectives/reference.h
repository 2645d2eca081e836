#pragma once

// Collectives in double.

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/plan/plan.h"

namespace orrery::reference {

// Outputs by rank for inputs by rank (kernels/comm/collectives/collective.h has the shapes); empty
// for a rank that receives nothing. Throws std::invalid_argument when inputs differ in size or n
// does not divide them where it must.
std::vector<std::vector<double>> collective(CollectiveKind kind,
                                            const std::vector<std::vector<double>>& inputs);

}  // namespace orrery::reference
