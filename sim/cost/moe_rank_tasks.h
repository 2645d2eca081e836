#pragma once

// What a rank of fused_moe has to do: the rows of its experts, and its tasks in the order in which
// SMs take them. When they do is simulated (moe_tiles.h).

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/experts/fused_moe/shape.h"
#include "sim/cost/moe_tiles.h"

namespace orrery {

// As kernels/experts/grouped_gemm/swap_ab_sm90.cuh and fused_moe have them.
inline constexpr std::int64_t kMoeTileColumns = 256;  // of w
inline constexpr std::int64_t kMoeStepBytes = 128;    // of a row of x that a step multiplies

// Parts of `size` that hold `all`.
inline std::int64_t num_parts(std::int64_t all, std::int64_t size) {
  return (all + size - 1) / size;
}

// One of the two products of an expert.
struct MoeGemm {
  std::int64_t columns = 0;                  // of a task
  std::int64_t sets = 1;                     // of weights: the gate's and the others
  std::int64_t width = 0;                    // columns of the result
  std::int64_t depth = 0;                    // columns that are summed over
  std::int64_t element = 2;                  // bytes of a value of x and of w
  double write_row = 0;                      // seconds
  [[nodiscard]] std::int64_t tasks() const;  // of a tile of rows
  [[nodiscard]] std::int64_t steps() const;
  // Of the task that begins with column `column` * columns.
  [[nodiscard]] double weight_bytes(std::int64_t column) const;
};
std::array<MoeGemm, 2> moe_gemms(const FusedMoeShape& shape, const MoeTileTimes& times);

struct MoeExpertTiles {
  std::int64_t rows = 0;
  std::int64_t width = 0;  // rows of a tile
  std::int64_t tiles = 0;
  std::int64_t first_tile = 0;
};

struct MoeRankRows {
  std::vector<MoeExpertTiles> experts;  // shared ones first
  std::int64_t num_tiles = 0;
  double sent = 0;     // rows of the own tokens
  double remote = -1;  // over the links, the larger of both ways; below 0: as all ranks are alike
  double sums_of_row = 1;  // rows of the own tokens for each that the own experts make
};
// Of `rank`, which options.choices are for.
MoeRankRows moe_rank_rows(const FusedMoeShape& shape, const MoeTileOptions& options,
                          std::int64_t rank);

struct MoeTask {
  std::int32_t expert = 0;  // of the rank
  std::int32_t tile = 0;    // of the expert
  std::int32_t column = 0;
  std::int32_t layer = 0;
};
std::vector<MoeTask> moe_rank_tasks(const FusedMoeShape& shape, const MoeTileOptions& options,
                                    const MoeRankRows& rows, const std::array<MoeGemm, 2>& gemms);

}  // namespace orrery
