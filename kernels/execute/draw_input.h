#pragma once

// Inputs drawn for a step that is known by its numbers alone. No CUDA.

#include <cstdint>

#include "kernels/binding/step_input.h"
#include "sim/plan/batch.h"

namespace orrery {

// Random token ids below `vocab`, and blocks drawn without order from the `num_blocks` of the
// cache, each given out once, so that pages of a sequence lie apart. Decodes all have the mean
// context. The same for equal arguments. Throws std::invalid_argument when the step needs more
// blocks than there are.
StepInput draw_input(const Batch& batch, std::int64_t vocab, std::int64_t num_blocks,
                     std::int32_t block_size, std::uint64_t seed);

}  // namespace orrery
