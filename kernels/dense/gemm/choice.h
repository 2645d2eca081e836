#pragma once

// What a gemm call is, which kernel serves it, and how the weight-streaming one is tiled. No CUDA.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/plan/plan.h"

namespace orrery {

// How e4m3 operands carry their scales; a stored value times its scale is the value meant.
enum class Fp8Scaling : std::uint8_t {
  kPerTensor,  // one float for x, one for w (static quantisation)
  kRowwise     // one float per row of x (token) and per row of w (output column): dynamic
};

// y[m, n] = x[m, k] w[n, k]^T + bias[n]
struct GemmShape {
  DType dtype = DType::kBf16;  // of x and w: bf16 or fp8 (e4m3); y is bf16, sums are fp32
  std::int64_t m = 0;          // rows of x: tokens; may be 0
  std::int64_t n = 0;          // rows of w; may be 0
  std::int64_t k = 0;
  Fp8Scaling scaling = Fp8Scaling::kRowwise;  // fp8 only
  bool has_bias = false;
  auto operator<=>(const GemmShape&) const = default;
};

// Of a gemm op of a plan, whose fp8 operands have scales by row.
GemmShape gemm_shape(const KernelOp& op, bool has_bias);
// Of one as it stands in the plan. Throws as operand_slots().
GemmShape gemm_shape(const Plan& plan, const Op& op);

// Throws std::invalid_argument for a dtype other than bf16 and fp8, a negative m or n, k < 1, or a
// dim past 2^31 - 1.
void require_gemm_shape(const GemmShape& shape);

// A block holds `rows` rows of w against all tokens; the `split` blocks of a cluster share a row
// tile and each take a stretch of k.
struct StreamingTile {
  int tokens = 8;    // columns of the MMA: 8, 16, 32 or 64, at least m
  int rows = 64;     // of w: a multiple of 8 up to 256
  int panels = 1;    // of 128 bytes of k per stage
  int split = 1;     // 1 to 8
  int stages = 4;    // of w that a block has room for
  int window = 4;    // of them, that may be under way at once
  int x_stages = 4;  // of x
  auto operator<=>(const StreamingTile&) const = default;
};

inline constexpr int kStreamingMaxTokens = 64;
inline constexpr int kStreamingMaxRows = 256;
inline constexpr int kStreamingMaxSplit = 8;  // blocks of a portable cluster

// The shared memory of a block, in bytes: the rings of stages of x and of w, later the fp32 sums
// [tokens, rows] in their place, behind them the barriers and the scales of x.
struct StreamingLayout {
  int x_bytes = 0;  // of a stage
  int w_bytes = 0;
  int w_at = 0;
  int sum_stride = 0;  // floats from one token's sums to the next
  int barriers_at = 0;
  int shared_bytes = 0;  // in all
};
StreamingLayout streaming_layout(const StreamingTile& tile);

// Whether the weight-streaming kernel can serve the shape: 1 to 64 tokens, rows of x and w a
// multiple of 16 bytes long (k of 8 for bf16, of 16 for fp8).
bool streaming_takes(const GemmShape& shape);

struct GemmChoice {
  std::optional<StreamingTile> tile;  // of the weight-streaming kernel; none: cuBLASLt
  int algorithm = 0;                  // of cuBLASLt's proposals
};

// KernelSpec::rounds: of the weight-streaming kernel 1, or 0 with more blocks than SMs. Of
// cuBLASLt's those of the tile, rows of w x tokens, that takes the least time in all rounds, of the
// two that it has for large shapes: 256 x 128 and 320 x 128 (13.0 on an H200,
// topologies/devices/h200-sxm/held_sms.csv).
int gemm_rounds(const GemmShape& shape);

// Thread blocks of the weight-streaming kernel, tiled by the rule; 0 where cuBLASLt serves.
std::int64_t streaming_blocks(const GemmShape& shape);

// Operations of cuBLASLt's fp8 kernel with rowwise scales, whose tiles of 128 x 128 take the SMs in
// whole rounds, over those that the shape needs: on an H200 512 rows of 4096 x 4096 take 14.6 us
// and 513 to 1,024 take 23.4 to 25.6. 1 for other kernels.
double computed_in_rounds(const GemmShape& shape);

// "64 tokens x 128 rows, panels 1, stages 4, split 2" or "cuBLASLt, proposal 0".
std::string to_text(const GemmChoice& choice);

// The kernel for a shape where none are timed: a rule made from timings on an H200. `overlap` as in
// GemmOptions. Streaming w wins at up to 64 tokens in bf16 and with rowwise scales; with per-tensor
// scales only when it overlaps.
GemmChoice choose_gemm(const GemmShape& shape, bool overlap);

// Tiles worth timing for a shape that streaming_takes(), that of the rule first.
std::vector<StreamingTile> streaming_candidates(const GemmShape& shape);

}  // namespace orrery
