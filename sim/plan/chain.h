#pragma once

// A plan run several times in a row, each time with weights of its own.

#include <string>

#include "sim/plan/plan.h"

namespace orrery {

// `count` layers one after the other, each with weights of its own, so that none is in the L2 cache
// when its turn comes: names end in "#<layer>", and none begins before the one ahead has ended, on
// whatever streams. The layer itself where count is 1.
Plan chained(const Plan& layer, int count);

// What a tensor or an op of `layer`, from 0, is called there.
std::string chained_name(const std::string& name, int layer, int count);

}  // namespace orrery
