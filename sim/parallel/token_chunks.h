#pragma once

// The tokens of a layer of routed experts in chunks that follow each other, each routed,
// dispatched, computed and combined by itself (FasterMoE, PPoPP 2022; Tutel, arXiv 2206.03382). Of
// K = 3:
//
//   0   sort, gather |             experts 0 | experts 1              | experts 2 | scatter
//   2   counts       | dispatch 0, dispatch 1 | combine 0, dispatch 2 | combine 1 | combine 2
//
// Rows sent and computed are those of all tokens at once; each chunk reads the weights of its
// experts anew, waits for the rank that has most of its rows, and launches all kernels again. The
// host waits once, for the counts of all chunks.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/parallel/rewrite.h"
#include "sim/parallel/routed_layer.h"
#include "sim/plan/plan.h"

namespace orrery {

// Rows [first, first + count) of a rank's tokens.
struct TokenChunk {
  std::int64_t first = 0;
  std::int64_t count = 0;
  ExpertGrid grid;     // of so many tokens of each rank
  std::string suffix;  // of names; empty: the one chunk
  // What ops of the layer write, to what those of this chunk write in its place.
  std::map<TensorId, TensorId> tensors;

  [[nodiscard]] bool is_whole() const { return suffix.empty(); }
};

// mesh.moe_chunks of them, or as many as there are tokens, as even as can be.
std::vector<TokenChunk> token_chunks(const Mesh& mesh, const KernelOp& shuffle,
                                     const KernelOp& gather);

// Op `id` of the layer on the chunk: its own tensors, and its rows of those of all tokens.
Op op_of_chunk(const Plan& source, OpId id, const TokenChunk& chunk);

}  // namespace orrery
