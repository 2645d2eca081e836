#include "kernels/routing_scores/choice.h"

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
constexpr int kRows = 64;
constexpr int kManyRows = 128;
constexpr int kLargeCluster = 16;

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
  constexpr std::uint64_t kLeast = 16;
  return static_cast<int>(
      std::max(std::bit_ceil(static_cast<std::uint64_t>(shape.experts_total)), kLeast));
}

RoutingScoresLayout routing_scores_layout(int columns, int rows) {
  constexpr int kPadding = 8;  // floats, so that a fragment's rows lie in different banks
  constexpr int kFloat = 4;
  RoutingScoresLayout layout{.stage_bytes = (columns + rows) * kPanelBytes,
                             .logits_stride = columns + kPadding};
  const int logits = rows * layout.logits_stride * kFloat;
  const int barriers = 2 * kMostStages * 8;
  const int room = kMostSharedBytes - barriers;
  layout.reuses_stages = (room - logits) / layout.stage_bytes < 3;
  layout.stages =
      std::min(kMostStages, (layout.reuses_stages ? room : room - logits) / layout.stage_bytes);
  const int ring = layout.stages * layout.stage_bytes;
  layout.logits_at = layout.reuses_stages ? 0 : ring;
  layout.barriers_at = layout.reuses_stages ? std::max(ring, logits) : ring + logits;
  layout.shared_bytes = layout.barriers_at + barriers;
  return layout;
}

RoutingScoresTile choose_routing_scores(const RoutingScoresShape& shape, int multiprocessors) {
  const std::int64_t tiles = std::max<std::int64_t>((shape.tokens + kRows - 1) / kRows, 1);
  const auto share = static_cast<std::uint64_t>(multiprocessors / tiles);
  if (share >= 2) {
    return {.rows = kRows,
            .cluster = std::min(static_cast<int>(std::bit_floor(share)), kLargeCluster),
            .is_split = true};
  }
  const int columns = routing_scores_columns(shape);
  const bool has_many = tiles > multiprocessors && columns <= 256;
  return {.rows = has_many ? kManyRows : kRows, .cluster = columns < 32 ? 1 : 4, .is_split = false};
}

}  // namespace orrery
