#pragma once

// The steps of a directory that `orrery validate --plan-only` wrote. No CUDA.
//
//   DIR/steps/<name>.step          what it computes (sim/plan/step_file.h)
//   DIR/steps/<name>.plan          its plan on all ranks

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "sim/plan/plan.h"
#include "sim/plan/step_file.h"

namespace orrery {

struct StepCase {
  std::string name;
  StepFile step;
  Plan plan;
};
// New ones, of all ranks together.
std::int64_t num_tokens(const StepCase& one);
// Layers of experts by themselves that run in a row; 0 of a step.
int num_layers(const StepCase& one);

// All steps of DIR by name, or those of `only` in its order. Throws std::invalid_argument naming
// file and line when one is missing or malformed, layers are no layers or not so many, or when
// there is none.
std::vector<StepCase> read_step_cases(const std::filesystem::path& directory,
                                      std::span<const std::string> only = {});

// The most that any of the steps needs, layers left out.
struct StepLimits {
  std::int64_t rows = 0;  // those of its plan, which may be padded
  std::int64_t sequences = 0;
  std::int64_t context = 0;    // of one sequence after the step
  std::int64_t kv_blocks = 0;  // of the fullest of data-parallel ranks (draw_input.h)
};
// Of `dp` data-parallel ranks, whose steps are dealt out in two halves where these overlap.
StepLimits limits_of(std::span<const StepCase> cases, std::int32_t block_size, int dp = 1,
                     bool overlaps_halves = false);

// Data-parallel ranks with caches of their own that sequences are dealt out to in order: all of
// `dp`, but where a pipeline's micro-batches are dealt out, of which each rank has several, one
// that could hold all.
int ranks_dealt_to(const Plan& plan, int dp, bool overlaps_halves);

}  // namespace orrery
