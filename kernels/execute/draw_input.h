#pragma once

// Inputs drawn for a step that is known by its numbers alone. No CUDA.

#include <cstdint>

#include "kernels/binding/step_input.h"
#include "sim/plan/batch.h"

namespace orrery {

// The most blocks that the sequences of one of `dp` data-parallel ranks have, which have caches of
// their own; prompts and decodes are dealt out in order, ceil(count / dp) to each (split_step).
std::int64_t blocks_of_fullest(const Batch& batch, std::int32_t block_size, int dp);

// Random token ids below `vocab`, and blocks drawn without order from the `num_blocks` of a rank's
// cache, each given out once to sequences of the rank, so that pages of a sequence lie apart.
// Decodes all have the mean context. The same for equal arguments. Throws std::invalid_argument
// when a rank needs more blocks than there are.
StepInput draw_input(const Batch& batch, std::int64_t vocab, std::int64_t num_blocks,
                     std::int32_t block_size, std::uint64_t seed, int dp = 1);

}  // namespace orrery
