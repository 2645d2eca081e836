#pragma once

// Random weights that are the same however a model is split: each element is a function of the
// seed, the weight's name in the unsplit plan, the layer and its row and column there. No CUDA but
// for fill_weight.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/execute/step_input.h"
#include "sim/plan/plan.h"

namespace orrery {

// Rows [local, local + count) of this rank's tensor are rows [global, global + count) of the whole;
// likewise columns. Padding rows (a vocabulary that does not divide) belong to no segment: zeros.
struct WeightSegment {
  std::int64_t local = 0;
  std::int64_t global = 0;
  std::int64_t count = 0;
};

// A weight of one rank as a part of the whole model's: rows are the first axis (all but the last
// for weights of experts), columns the last; a vector is one row.
struct WeightShard {
  std::string name;             // in the plan of one rank: "layers.0.qkv_proj.weight"
  std::int64_t first_copy = 0;  // of this rank's copy 0 among all copies (pipeline stages)
  std::int64_t num_copies = 1;  // on this rank
  std::int64_t rows = 0;        // local
  std::int64_t columns = 0;
  std::int64_t whole_columns = 0;
  std::vector<WeightSegment> row_segments;
  std::vector<WeightSegment> column_segments;
  double bound = 0;      // elements are uniform in [-bound, bound]; gains of norms: see below
  bool is_gain = false;  // 1 + uniform in [-bound, bound]
};

// One shard for each weight tensor that `rank` holds, with micro-batch copies of a name merged
// ("s1.m0.layers.0.x" and "s1.m1.layers.0.x" are one weight): tensor_shard[tensor id] is an index
// or -1. `whole` is the plan before sim/parallel split it. bound = sqrt(3 / columns of the whole),
// so that a linear layer keeps the variance of its input. Throws std::invalid_argument for a weight
// whose split it does not know.
struct WeightShards {
  std::vector<WeightShard> shards;
  std::vector<std::int32_t> tensor_shard;
};
WeightShards weight_shards(const Plan& plan, const Plan& whole, const RankGrid& grid, int rank);

// Uniform in [-1, 1): splitmix64 of seed, name, copy and the element's place in the whole weight.
// The same bits on host and device (weight_value.h).
float weight_noise(std::uint64_t seed, std::uint64_t name_hash, std::int64_t copy, std::int64_t row,
                   std::int64_t column);

}  // namespace orrery
