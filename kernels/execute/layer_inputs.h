#pragma once

// Inputs of layers of experts by themselves. No CUDA.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/binding/step_input.h"
#include "sim/plan/plan.h"

namespace orrery {

// x of all tokens, [tokens, hidden]: uniform with variance 1, the same for equal arguments.
std::vector<float> draw_layer_input(std::int64_t tokens, std::int64_t hidden, std::uint64_t seed);

// What `rank` has in `tensor` of `values` [tokens, columns]: all rows, or where it has fewer those
// of its data-parallel rank; zeros where it has more.
std::vector<float> rows_of_rank(const Tensor& tensor, const RankGrid& grid, int rank,
                                std::int64_t tokens, std::span<const float> values);

// The inputs of `rank` by name, of layers whose only input is x of `tokens` tokens. Throws
// std::invalid_argument naming an input in another format than bf16.
std::map<std::string, std::vector<float>> layer_inputs(const Plan& plan, const RankGrid& grid,
                                                       int rank, std::int64_t tokens,
                                                       std::uint64_t seed);

}  // namespace orrery
