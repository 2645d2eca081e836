#pragma once

// Takes sequences out of MLA's paged cache (kernels/cuda/paged_kv.h), latents and rotated keys
// apart, for what expands them.

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"
#include "kernels/cuda/paged_kv.h"

namespace orrery {

struct KvGatherShape {
  std::int64_t tokens = 0;     // of all sequences
  std::int64_t sequences = 0;  // at least 1 where there are tokens
  std::int64_t latent = 0;     // elements, a multiple of 8
  std::int64_t rope = 0;       // elements, a multiple of 8
};

// cache    keys [num_blocks, block_size, latent + rope], block_table [sequences,
//          blocks_per_sequence]
// starts   [sequences] int32 on the device, ascending from 0: rows of the results from starts[s] on
//          are tokens 0, 1, ... of sequence s
// latents  [tokens, latent], rotated [tokens, rope]; all pointers 16-byte aligned
// Throws std::invalid_argument for other sizes or alignments, cuda::Error when the launch fails.
void kv_gather(const cuda::Stream& stream, const PagedKv<const bf16>& cache,
               const std::int32_t* starts, const KvGatherShape& shape, bf16* latents,
               bf16* rotated);

}  // namespace orrery
