#pragma once

// From a deployment's text to the executor of its steps.

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "kernels/execute/executor.h"
#include "kernels/execute/router_bias.h"
#include "kernels/execute/step_cases.h"
#include "sim/serve/deployment.h"

namespace orrery::tool {

// Throws std::invalid_argument naming the file when it cannot be read or is none.
Deployment read_deployment(const std::filesystem::path& file);

// Ranks as the mesh of the deployment numbers them. Throws std::invalid_argument for a mesh that
// the executor does not run. Of cp it takes all: what a step needs of it is seen when it is bound.
RankGrid rank_grid(const Mesh& mesh);

// How its experts are scored, chosen and weighed.
Routing routing_of(const ModelConfig& model);
ExpertRouter router_of(const ModelConfig& model);

// Numbers of the model, for positions below `max_positions`; its router chooses experts as the
// deployment's expert load says. Throws as router_bias().
ModelNumbers model_numbers(const Deployment& deployment, std::int64_t max_positions);

// Of layers of experts by themselves, which have the same weights all, on `devices` by rank.
// Requires one at least.
ExecutorSetup layers_setup(const Deployment& deployment, std::span<const StepCase> layers,
                           std::vector<int> devices);

}  // namespace orrery::tool
