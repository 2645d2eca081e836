#pragma once

// How long the links of a machine take to bring experts to other ranks.

#include <cstdint>
#include <span>
#include <vector>

#include "sim/machine/machine.h"
#include "sim/model/model.h"
#include "sim/parallel/expert_moves.h"
#include "sim/parallel/parallel.h"

namespace orrery {

// Of the first pipeline stage of `mesh`, block after block: the ranks that hold its experts, each a
// slice of their columns. REQUIRES: experts are those of design shuffling (ExpertGrid).
std::vector<std::vector<int>> ranks_of_blocks(const ModelConfig& model, const Mesh& mesh);

// Of `moves` at once, each slice of `expert` bytes from its rank to the rank of the same slice: the
// link that carries most, at its rate, and the latency of the longest route. What moves within a
// rank takes no link. A lower bound of what an engine takes.
Seconds moving_time(const Machine& machine, std::span<const std::vector<int>> ranks_of_block,
                    std::span<const ExpertMove> moves, Bytes expert);

// Weights of one routed expert of one layer as `options` lowers it, over all ranks that share it.
Bytes expert_bytes(const ModelConfig& model, const LoweringOptions& options);
// Layers with routed experts, and of them those of the pipeline stage that has most.
std::int64_t num_routed_layers(const ModelConfig& model);
std::int64_t most_routed_layers(const ModelConfig& model, int pp);

}  // namespace orrery
