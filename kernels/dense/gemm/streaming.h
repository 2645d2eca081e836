#pragma once

// gemm for few tokens: a stream of the weights through the tensor cores.

#include "kernels/cuda/handles.h"
#include "kernels/dense/gemm/choice.h"
#include "kernels/dense/gemm/gemm.h"

namespace orrery {

struct StreamingOptions {
  // Fetches weights while the kernels before it in the stream still run. Only where none of them
  // writes w or its scales.
  bool overlap = false;
};

// One gemm of 1 to 64 tokens, tiled as `tile` says (streaming_candidates()). No workspace,
// deterministic. The launch is programmatic: what it reads and writes waits for the kernels before
// it in the stream, but for what `overlap` lets it read ahead. Operands are assumed to be 16-byte
// aligned, scales present for fp8. Throws std::invalid_argument for shapes that streaming_takes()
// refuses and for tiles that are not built, cuda::Error when the launch fails or the tile's memory
// does not fit.
void streaming_gemm(const cuda::Stream& stream, const GemmShape& shape, const StreamingTile& tile,
                    const GemmOperands& operands, const StreamingOptions& options = {});

}  // namespace orrery
