#pragma once

// How a case's layer gets its inputs and gives its output, on the executor and in the reference.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/execute/executor.h"
#include "kernels/tool/moe_cases.h"

namespace orrery::tool {

// An executor for the case's layer, and for others of the same model, format, mesh and bias on the
// router with at most as many tokens. `plan` is the layer, split over ranks.
ExecutorSetup layer_setup(const MoeCase& one, Plan plan);

// The inputs of `rank` by name: the rows of x, and of the scores if they are imposed, that it has;
// zeros where it has more.
std::map<std::string, std::vector<float>> layer_inputs(const MoeCase& one, const Plan& plan,
                                                       int rank);

// y of all tokens, [tokens, hidden], of which `of_rank(rank)` is [rows, hidden].
template <typename OfRank>
std::vector<float> layer_output(const MoeCase& one, const OfRank& of_rank) {
  std::vector<float> all;
  for (int rank = 0; rank < num_ranks(one.mesh); rank += one.mesh.tp) {
    const auto own = of_rank(rank);
    all.insert(all.end(), own.begin(), own.end());
  }
  const std::int64_t hidden = moe_model(one.model).hidden_size;
  all.resize(static_cast<std::size_t>(one.tokens * hidden));
  return all;
}

// A prepared layer with its inputs.
std::unique_ptr<PreparedStep> prepared_layer(Executor& executor, const MoeCase& one,
                                             const Plan& plan);

// Largest difference over the largest expected. Infinite where they differ in size or a value is
// not finite.
double layer_difference(const std::vector<float>& found, const std::vector<float>& expected);

}  // namespace orrery::tool
