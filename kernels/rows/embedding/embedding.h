#pragma once

// Rows of an embedding table by token id.

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"

namespace orrery {

// y[token] = table[ids[token]]; an id outside 0 .. vocab - 1 gives zeros (a rank that holds a part
// of the table passes ids less its first row). ids int32 [tokens], table bf16 [vocab, hidden], y
// bf16 [tokens, hidden], contiguous. 16-byte aligned pointers and a hidden that is a multiple of 8
// go by vectors; anything else is correct but slow. Throws cuda::Error when the launch fails.
void embedding(const cuda::Stream& stream, const std::int32_t* ids, const bf16* table, bf16* y,
               std::int64_t tokens, std::int64_t hidden, std::int64_t vocab);

}  // namespace orrery
