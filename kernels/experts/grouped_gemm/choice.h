#pragma once

// What a grouped gemm call is, what load is expected of it, and which kernel serves it with which
// tile. No CUDA.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "kernels/experts/grouped_gemm/tiled_choice.h"
#include "sim/plan/plan.h"

namespace orrery {

// y[row, n] = x[row, k] w[group of the row][n, k]^T. Rows are sorted by group; how many each group
// has lies on the device.
struct GroupedGemmShape {
  // Of x and w: bf16, fp16 or fp8 (e4m3, a scale per row of x and of w).
  DType dtype = DType::kBf16;
  std::int64_t max_rows = 0;  // that x and y have room for; may be 0
  std::int64_t n = 0;         // rows of each w; may be 0
  std::int64_t k = 0;
  std::int64_t groups = 0;
  auto operator<=>(const GroupedGemmShape&) const = default;
};

inline constexpr std::int64_t kGroupedGemmMaxGroups = 512;

// Throws std::invalid_argument for a dtype other than bf16, fp16 and fp8, groups outside 1 to 512,
// k < 1 or rows of x and w that are no multiple of 16 bytes long (k of 8, for fp8 of 16), a
// negative max_rows or n, more than 2^30 of either, or more than 2^31 - 1 rows of w in all.
void require_grouped_gemm_shape(const GroupedGemmShape& shape);

// What the caller expects of the counts, from which the host chooses; others give the same results.
struct GroupedGemmLoad {
  std::int64_t rows = 0;    // of all groups
  std::int64_t active = 0;  // groups with at least one row
  auto operator<=>(const GroupedGemmLoad&) const = default;
};

// The weight-streaming kernel (streamed_sm90.cu), for few rows per group. A work item is `rows`
// rows of one group's w against up to `tokens` of its rows of x, along k.
struct StreamedTile {
  int tokens = 8;         // 8, 16, 32 or 64: groups with more rows read w again (from the L2)
  int rows = 64;          // of w: 64, or 128 with 2 panels
  int panels = 2;         // of 128 bytes of k per stage: 2 or 4
  int stages = 4;         // in flight per block
  int blocks_per_sm = 1;  // 1 or 2
  int cuts = 1;           // pieces along k, at most, of a work item in a last round of few
  auto operator<=>(const StreamedTile&) const = default;
};

using GroupedGemmChoice = std::variant<StreamedTile, TiledChoice>;

// "streamed, 8 tokens x 64 rows, panels 2, stages 11, 1 per SM, cuts 8", or that of TiledChoice.
std::string to_text(const GroupedGemmChoice& choice);

// The shared memory of a block of the weight-streaming kernel, in bytes: the ring of stages, behind
// it the outputs in the making, the barriers and the table of active groups.
struct StreamedLayout {
  int stage_bytes = 0;
  int outputs_at = 0;
  int barriers_at = 0;
  int groups_at = 0;
  int shared_bytes = 0;  // in all
};
StreamedLayout streamed_layout(const StreamedTile& tile, std::int64_t groups);

// The tile with as many stages as the memory of an SM has room for, at least 1.
StreamedTile with_most_stages(StreamedTile tile, std::int64_t groups);

// The kernel and tile for a shape under a load: a rule made from timings on an H200.
GroupedGemmChoice choose_grouped_gemm(const GroupedGemmShape& shape, const GroupedGemmLoad& load);

// The tile under a load that goes in tiles, whatever it is.
TiledChoice choose_tile(const GroupedGemmShape& shape, const GroupedGemmLoad& load);

// Whether groups have few enough rows for the weight-streaming kernel.
bool is_streamed(const GroupedGemmLoad& load);

// Operations of the kernel chosen over those that the rows need. Where they go in tiles, a group
// leaves some 32 rows empty (widths in steps of 32, one or two tiles a group: swap_ab_sm90.cuh).
double computed_over_needed(const GroupedGemmLoad& load);

// A work item of the weight-streaming kernel by the rule: rows of w, and pieces of it along k.
struct StreamedItem {
  int rows = 0;
  int cuts = 0;
};
StreamedItem streamed_item(const GroupedGemmShape& shape, const GroupedGemmLoad& load);

// Tiles of the weight-streaming kernel worth timing, that of the rule first.
std::vector<StreamedTile> streamed_candidates(const GroupedGemmShape& shape,
                                              const GroupedGemmLoad& load);

}  // namespace orrery
