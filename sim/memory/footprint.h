#pragma once

// What memory a rank that executes plans (kernels/execute) will need: predictions and the check of
// them on GPUs count with the same code.

#include <cstdint>
#include <span>

#include "sim/memory/rank_memory.h"
#include "sim/plan/plan.h"
#include "sim/units/units.h"

namespace orrery {

// What a process holds besides what plans say. Measured: `orrery-gpu time memory`.
struct FixedMemory {
  Bytes context;    // CUDA context, code of this program's kernels
  Bytes libraries;  // code of libraries, loaded when they are first used
  Bytes workspace;  // scratch memory of gemms and attention
};

// On H200s, driver 580, CUDA 13.0, all code being loaded ahead (set_execute_environment). Context:
// 0.519 GiB with this program's kernels; libraries: 0.371 GiB of cuBLASLt's code; where code is
// loaded when it is first used (CUDA_MODULE_LOADING=LAZY), 0.518 GiB in all. Workspace: 32 MiB that
// gemms share, 2 MiB of attention_decode. The same numbers stand in scenarios/engines/orrery.yaml
// (a test holds them equal).
FixedMemory h200_fixed_memory();

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
