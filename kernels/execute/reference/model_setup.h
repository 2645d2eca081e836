#pragma once

// What is run on the CPU: the mesh, the model's numbers, and what its weights and caches are.

#include <cstdint>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {

struct ModelSetup {
  RankGrid grid;
  ModelNumbers numbers;
  std::uint64_t seed = 1;          // of the weights
  std::int64_t num_kv_blocks = 0;  // per rank
  std::int32_t block_size = 64;
  Rounding rounding = Rounding::kNone;
};

}  // namespace orrery::reference
