#pragma once

// The check of KV transfers between two GPUs.

#include <functional>
#include <span>

#include "kernels/comm/collectives/check.h"

namespace orrery {

// By copy engine and by SMs, contiguous and scattered, one block to many, odd sizes: every byte of
// the destination, poisoned before, against what it should be; a block left out must be noticed.
void check_kv_transfer(std::span<const int> devices,
                       const std::function<void(const CollectiveReport&)>& report,
                       bool small = false);

}  // namespace orrery
