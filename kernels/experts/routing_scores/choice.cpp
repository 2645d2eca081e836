#include "kernels/experts/routing_scores/choice.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <string>

namespace orrery {
namespace {

constexpr int kPanelBytes = 128;  // of hidden per stage
constexpr int kMostSharedBytes = 227 * 1024;
constexpr int kMostStages = 8;
constexpr int kPanelK = 64;
constexpr int kFloat = 4;  // bytes
constexpr int kLeastColumns = 16;
constexpr int kMmaRows = 64;
constexpr int kLargeCluster = 16;
constexpr int kExchange = 2;  // of a byte between blocks, in bytes read

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

void require_range(const char* what, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) {
    throw std::invalid_argument("routing_scores: " + std::string(what) + " is " +
                                std::to_string(value) + ", expected " + std::to_string(least) +
                                " to " + std::to_string(most));
  }
}

}  // namespace

void require_routing_scores_shape(const RoutingScoresShape& shape) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  require_range("experts_total", shape.experts_total, 1, kMostScores);
  require_range("tokens", shape.tokens, 0, kMost);
  require_range("hidden", shape.hidden, 8, kMost);
  if (shape.hidden % 8 != 0) {
    throw std::invalid_argument("routing_scores: hidden is " + std::to_string(shape.hidden) +
                                ", expected a multiple of 8");
  }
}

int routing_scores_columns(const RoutingScoresShape& shape) {
  return std::max(static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(shape.experts_total))),
                  kLeastColumns);
}

RoutingScoresLayout routing_scores_layout(int columns, int rows) {
  constexpr int kPadding = 8;  // floats, so that a fragment's rows lie in different banks
  RoutingScoresLayout layout{.stage_bytes = (columns + std::max(rows, kMmaRows)) * kPanelBytes,
                             .logits_stride = columns + kPadding};
  const int logits = rows * layout.logits_stride * kFloat;
  const int barriers = 2 * kMostStages * 8;
  const int room = kMostSharedBytes - barriers;
  const bool is_sent = routing_scores_are_sent(columns, rows);
  layout.stages = std::min(kMostStages, (is_sent ? room - logits : room) / layout.stage_bytes);
  const int ring = layout.stages * layout.stage_bytes;
  layout.logits_at = is_sent ? ring : 0;
  layout.barriers_at = is_sent ? ring + logits : std::max(ring, logits);
  layout.shared_bytes = layout.barriers_at + barriers;
  return layout;
}

RoutingScoresTile choose_routing_scores(const RoutingScoresShape& shape,
                                        const std::array<int, 5>& most_clusters) {
  constexpr int kMostWaves = 1 << 20;
  const int all_columns = routing_scores_columns(shape);
  const bool is_sigmoid = shape.activation == RouterActivation::kSigmoid;
  RoutingScoresTile best{.columns = all_columns};
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (int columns = is_sigmoid ? kLeastColumns : all_columns; columns <= all_columns;
       columns *= 2) {
    const int least_rows = columns > 128 ? 64 : 16;
    const int most_rows = columns > 256 ? 64 : columns > 128 ? 128 : 256;
    for (int rows = least_rows; rows <= most_rows; rows *= 2) {
      const std::int64_t tiles = ceil_div(std::max<std::int64_t>(shape.tokens, 1), rows) *
                                 ceil_div(shape.experts_total, columns);
      for (std::size_t i = 0; i < most_clusters.size(); ++i) {
        const int cluster = 1 << i;
        // The next launch's clusters of 16 start early only where there are few.
        const int most = cluster == kLargeCluster ? most_clusters[i] / 3 : most_clusters[i];
        if (most == 0) continue;
        const std::int64_t waves = std::min<std::int64_t>(ceil_div(tiles, most), kMostWaves);
        const std::int64_t read = (std::min<std::int64_t>(rows, shape.tokens) + columns) *
                                  ceil_div(ceil_div(shape.hidden, kPanelK), cluster);
        const std::int64_t exchanged =
            std::min<std::int64_t>(rows, shape.tokens) * columns * kFloat / kPanelBytes;
        const std::int64_t cost = waves * (read + kExchange * exchanged);
        if (cost >= least) continue;
        least = cost;
        best = {.rows = rows, .columns = columns, .cluster = cluster};
      }
    }
  }
  return best;
}

}  // namespace orrery
