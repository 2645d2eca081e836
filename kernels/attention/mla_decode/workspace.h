#pragma once

// What mla_decode's kernel leaves in its workspace for the merge of split sequences.

#include <cstddef>
#include <cstdint>

#include "kernels/attention/mla_decode/mla_decode.h"
#include "kernels/cuda/handles.h"

namespace orrery {

// Where the pieces of a sequence are: unit `first` holds piece 0, unit first + i piece i.
struct MlaPieceRange {
  std::int32_t first = 0;
  std::int32_t count = 0;
};

// Two slots per unit: 0 for a piece that begins inside of a sequence, 1 for one that begins it.
struct MlaWorkspace {
  float* out = nullptr;             // [units, 2, heads, 512], each piece normalised by its own sum
  float* lse = nullptr;             // [units, 2, heads]
  MlaPieceRange* pieces = nullptr;  // [sequences], of those with a length above zero
};

// out and lse of the sequences that are split into several pieces, and of those of length zero.
void mla_merge(const cuda::Stream& stream, const MlaWorkspace& workspace,
               const std::int32_t* lengths, const MlaDecodeDims& dims, bf16* out, float* lse);

}  // namespace orrery
