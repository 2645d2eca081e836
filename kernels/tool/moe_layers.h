#pragma once

// Layers of mixtures of experts, executed and measured one case after another.

#include <filesystem>
#include <span>

#include "kernels/tool/moe_cases.h"
#include "kernels/tool/run_faults.h"

namespace orrery::tool {

// Runs all cases and writes their plans and rows (moe.cpp says which) to `directory`, printing a
// line for each. Cases with the same model, format and mesh share their weights, all traces come
// after all times of such a group. Returns how many could not run. Throws what writing throws.
int run_moe_layers(std::span<const MoeCase> cases, const std::filesystem::path& directory,
                   const FaultOptions& faults, RunWatch& watch);

}  // namespace orrery::tool
