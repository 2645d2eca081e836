#pragma once

// Next token of each sequence from its logits [seqs, vocab], contiguous, bf16 or fp32; ids int32
// [seqs]. A NaN counts as -infinity. 16-byte aligned rows go by vectors; anything else is
// correct but slow. vocab from 1 to 2^31 - 1.

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"

namespace orrery {

// The largest logit, the lowest id of equal ones. Throws cuda::Error when the launch fails.
void sample_argmax(const cuda::Stream& stream, const bf16* logits, std::int32_t* ids,
                   std::int64_t seqs, std::int64_t vocab);
void sample_argmax(const cuda::Stream& stream, const float* logits, std::int32_t* ids,
                   std::int64_t seqs, std::int64_t vocab);

inline constexpr int kMostTopK = 256;

struct TopKOptions {
  int k = 50;             // 1 .. kMostTopK; all of a smaller vocabulary
  float temperature = 1;  // > 0
  std::uint64_t seed = 0;
};

// Draws from the softmax of logits / temperature over the k largest (lower ids first among equals):
// the first id, in falling order of logits, at which the cumulated probability exceeds
// uniform(seed, counters[seq]) of kernels/rows/sample/random.h. counters uint64 [seqs]: a new one
// for each draw. Throws std::invalid_argument for options out of range.
void sample_top_k(const cuda::Stream& stream, const bf16* logits, const std::uint64_t* counters,
                  std::int32_t* ids, std::int64_t seqs, std::int64_t vocab,
                  const TopKOptions& options);
void sample_top_k(const cuda::Stream& stream, const float* logits, const std::uint64_t* counters,
                  std::int32_t* ids, std::int64_t seqs, std::int64_t vocab,
                  const TopKOptions& options);

}  // namespace orrery
