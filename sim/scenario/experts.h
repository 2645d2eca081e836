#pragma once

// How a scenario's routed experts are computed, chosen and placed.

#include <filesystem>

#include "sim/scenario/reader.h"
#include "sim/scenario/scenario.h"

namespace orrery {

// Keys `moe` and `model.expert_load`, after model, placement and engine profile, which has the
// default design: sets moe, expert_shares and the expert_load of each mesh. `directory` is the
// scenario's. Throws ScenarioError.
void read_experts(const Reader& root, const std::filesystem::path& directory, Scenario& scenario);

// Throws std::invalid_argument where the design cannot dispatch rows as `mesh` says, whose experts
// are on the machine of `setting`; `says_comm`: the file says how.
void check_dispatch(MoeDesign design, const Mesh& mesh, const MachineSetting& setting,
                    bool says_comm);

}  // namespace orrery
