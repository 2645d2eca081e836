#include "sim/cost/moe_rank_tasks.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>

#include "kernels/experts/fused_moe/buffers.h"
#include "kernels/experts/fused_moe/task_order.h"
#include "kernels/experts/grouped_gemm/tile_sizes.h"
#include "sim/cost/uniform_rows.h"

namespace orrery {
namespace {

std::int64_t routed_of_rank(const FusedMoeShape& shape) { return shape.experts / shape.ranks; }

// Rows that choose the own routed experts on all ranks.
std::vector<double> means_of_experts(const FusedMoeShape& shape, std::span<const double> choices,
                                     std::int64_t rank) {
  const auto own = static_cast<std::size_t>(routed_of_rank(shape));
  const std::int64_t tokens = shape.tokens * shape.ranks;
  if (choices.empty()) {
    return std::vector<double>(
        own, static_cast<double>(tokens * shape.topk) / static_cast<double>(shape.experts));
  }
  const auto first = choices.begin() + static_cast<std::ptrdiff_t>(own) * rank;
  std::vector<double> means(first, first + static_cast<std::ptrdiff_t>(own));
  for (double& mean : means) mean *= static_cast<double>(tokens);
  return means;
}

// What the own tokens send, the larger of what they send to other ranks and of what comes from
// there, and what is added up for each row that the own experts, which have `rows`, make.
void set_moved(MoeRankRows& of_rank, const FusedMoeShape& shape, std::span<const double> choices,
               std::span<const std::int64_t> rows) {
  of_rank.sent = mean_rows(shape, shape.tokens);
  const auto ranks = static_cast<double>(shape.ranks);
  if (choices.empty()) return;
  const std::int64_t capacity = capacity_of(shape, shape.tokens);
  const auto tokens = static_cast<double>(shape.tokens);
  of_rank.sent = 0;
  for (const double chosen : choices) {
    of_rank.sent += capacity >= shape.tokens
                        ? tokens * chosen
                        : mean_at_most(tokens, chosen, static_cast<double>(capacity));
  }
  const double made = std::max(
      1.0, static_cast<double>(std::accumulate(rows.begin(), rows.end(), std::int64_t{0})));
  of_rank.remote = std::max(of_rank.sent - made / ranks, made * (ranks - 1) / ranks);
  of_rank.sums_of_row = of_rank.sent / made;
}

// Of rows that choose an expert on all ranks, those that it takes: as many as the mean says, of
// rows that are dealt to the ranks by chance. How many it takes of each rank is left to that mean.
std::int64_t taken_of(const FusedMoeShape& shape, std::int64_t rows) {
  const std::int64_t capacity = capacity_of(shape, shape.tokens);
  if (capacity >= shape.tokens || rows == 0) return rows;
  const auto ranks = static_cast<double>(shape.ranks);
  const double taken =
      ranks * mean_at_most(static_cast<double>(rows), 1 / ranks, static_cast<double>(capacity));
  return std::max<std::int64_t>(std::llround(taken), 1);
}

// Of the blocks, between the layers of an expert (route_sm90.cuh).
int half_rounds_between(const FusedMoeShape& shape) { return shape.is_fp8 ? 8 : 3; }

// Where experts have unlike rows: the kernel's own order, with so many tiles between the layers.
std::vector<MoeTask> uneven_tasks(const FusedMoeShape& shape, int num_sms, const MoeRankRows& rows,
                                  const std::array<MoeGemm, 2>& gemms) {
  std::vector<std::uint16_t> tile_start;
  tile_start.reserve(rows.experts.size() + 1);
  for (const MoeExpertTiles& expert : rows.experts) {
    tile_start.push_back(static_cast<std::uint16_t>(expert.first_tile));
  }
  tile_start.push_back(static_cast<std::uint16_t>(rows.num_tiles));
  const auto first_columns = static_cast<int>(gemms[0].tasks());
  const int least =
      fused_moe::least_tiles_between(half_rounds_between(shape), num_sms, first_columns);
  const auto num_experts = static_cast<int>(rows.experts.size());
  std::vector<std::uint8_t> waiting;
  waiting.reserve(rows.experts.size());
  for (int expert = 0; expert < num_experts; ++expert) {
    waiting.push_back(
        static_cast<std::uint8_t>(fused_moe::experts_waiting(tile_start.data(), expert, least)));
  }
  const fused_moe::TaskOrder order(tile_start.data(), waiting.data(), num_experts, first_columns,
                                   static_cast<int>(gemms[1].tasks()));
  std::vector<MoeTask> tasks;
  fused_moe::TaskPlace place;
  for (int i = 0; order.find(i, place); ++i) {
    tasks.push_back({.expert = place.expert,
                     .tile = place.tile,
                     .column = place.column,
                     .layer = place.is_second ? 1 : 0});
  }
  return tasks;
}

void add_tasks(std::vector<MoeTask>& tasks, const MoeRankRows& rows,
               const std::array<MoeGemm, 2>& gemms, std::int64_t expert, std::int32_t layer) {
  if (expert < 0 || expert >= std::ssize(rows.experts)) return;
  const auto columns = static_cast<std::int32_t>(gemms[static_cast<std::size_t>(layer)].tasks());
  const auto tiles =
      static_cast<std::int32_t>(rows.experts[static_cast<std::size_t>(expert)].tiles);
  for (std::int32_t column = 0; column < columns; ++column) {
    for (std::int32_t tile = 0; tile < tiles; ++tile) {
      tasks.push_back({.expert = static_cast<std::int32_t>(expert),
                       .tile = tile,
                       .column = column,
                       .layer = layer});
    }
  }
}

// The fitted times are of as many experts between the layers, whatever the rows that chance leaves
// each.
std::vector<MoeTask> even_tasks(const FusedMoeShape& shape, const MoeTileOptions& options,
                                const MoeRankRows& rows, const std::array<MoeGemm, 2>& gemms) {
  const std::int64_t own = std::ssize(rows.experts);
  const std::int64_t firsts = rows.num_tiles * gemms[0].tasks();
  const std::int64_t blocks = options.num_sms;
  const std::int64_t halves = half_rounds_between(shape);
  const std::int64_t behind =
      options.order == MoeTileOrder::kByLayer
          ? own
          : std::min(1 + halves * blocks * own / (2 * std::max<std::int64_t>(firsts, 1)), own);
  std::vector<MoeTask> tasks;
  for (std::int64_t turn = 0; turn < own + behind; ++turn) {
    add_tasks(tasks, rows, gemms, turn, 0);
    add_tasks(tasks, rows, gemms, turn - behind, 1);
  }
  return tasks;
}

}  // namespace

std::int64_t MoeGemm::tasks() const { return num_parts(width, columns); }
std::int64_t MoeGemm::steps() const { return num_parts(depth * element, kMoeStepBytes); }
double MoeGemm::weight_bytes(std::int64_t column) const {
  const std::int64_t own = std::min(columns, width - column * columns);
  return static_cast<double>(element * sets * own * depth);
}

std::array<MoeGemm, 2> moe_gemms(const FusedMoeShape& shape, const MoeTileTimes& times) {
  const bool is_gated = shape.activation == ExpertActivation::kSwiglu;
  const std::int64_t element = shape.is_fp8 ? 1 : 2;
  return {{{.columns = is_gated ? kMoeTileColumns / 2 : kMoeTileColumns,
            .sets = is_gated ? 2 : 1,
            .width = shape.ffn,
            .depth = shape.hidden,
            .element = element,
            .write_row = times.write_row.value() * (is_gated ? times.gated : 1)},
           {.columns = kMoeTileColumns,
            .sets = 1,
            .width = shape.hidden,
            .depth = shape.ffn,
            .element = element,
            .write_row = times.write_row.value()}}};
}

MoeRankRows moe_rank_rows(const FusedMoeShape& shape, const MoeTileOptions& options,
                          std::int64_t rank) {
  std::vector<std::int64_t> rows = rows_of_experts(means_of_experts(shape, options.choices, rank));
  for (std::int64_t& count : rows) count = taken_of(shape, count);
  MoeRankRows of_rank;
  set_moved(of_rank, shape, options.choices, rows);
  if (options.order == MoeTileOrder::kLongestFirst) std::ranges::sort(rows, std::greater<>());
  rows.insert(rows.begin(), static_cast<std::size_t>(shape.shared), shape.tokens);
  for (const std::int64_t count : rows) {
    const std::int64_t width = tiles::even_tile_rows(static_cast<int>(count), kFusedTileRows);
    of_rank.experts.push_back({.rows = count,
                               .width = width,
                               .tiles = num_parts(count, width),
                               .first_tile = of_rank.num_tiles});
    of_rank.num_tiles += of_rank.experts.back().tiles;
  }
  return of_rank;
}

std::vector<MoeTask> moe_rank_tasks(const FusedMoeShape& shape, const MoeTileOptions& options,
                                    const MoeRankRows& rows, const std::array<MoeGemm, 2>& gemms) {
  const bool is_uneven = !options.choices.empty() && options.order == MoeTileOrder::kBehind;
  return is_uneven ? uneven_tasks(shape, static_cast<int>(options.num_sms), rows, gemms)
                   : even_tasks(shape, options, rows, gemms);
}

}  // namespace orrery
