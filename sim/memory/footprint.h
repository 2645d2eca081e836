#pragma once

// What memory a rank that executes plans (kernels/execute) will need: predictions and the check of
// them on GPUs count with the same code.

#include <cstdint>
#include <span>

#include "sim/memory/rank_memory.h"
#include "sim/plan/plan.h"
#include "sim/units/units.h"

namespace orrery {

// What a process holds besides what plans say. Measured: `orrery-gpu time memory`; of our executor
// in scenarios/engines/orrery.yaml.
struct FixedMemory {
  Bytes context;    // CUDA context, code of this program's kernels
  Bytes libraries;  // code of libraries, loaded when they are first used
  Bytes workspace;  // scratch memory of gemms and attention
};

struct FootprintRequest {
  std::span<const Plan* const> steps;     // all that are prepared
  std::span<const Plan* const> captured;  // those of them that become graphs
  Bytes kv_cache;                         // of the rank
  // Tables of the step: rows and sequences of the largest, tokens of the longest sequence.
  std::int64_t max_tokens = 0;
  std::int64_t max_sequences = 0;
  std::int64_t max_model_len = 0;
  std::int64_t block_size = 64;
  std::int64_t head_dim = 128;
  FixedMemory fixed;
  Bytes scratch;  // of kernels: the most of workspace_of() of the steps (kernels/kernel_spec.h)
};

// Of `rank`, which is in all plans. States are those of max_sequences sequences in the first step's
// layers, NCCL's memory as on 2 GPUs. Allocations are whole 2 MiB. Throws std::invalid_argument
// without a step.
RankMemory footprint(const FootprintRequest& request, int rank);

// Both halves of the receive area of our all-reduce (kernels/comm/all_reduce) on each of
// `num_ranks` ranks, for messages of up to `largest` bytes.
Bytes all_reduce_area(std::int64_t largest, int num_ranks);

}  // namespace orrery
