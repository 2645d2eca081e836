#pragma once

// What a routing_scores call is, and how it is tiled. No CUDA.

#include <array>
#include <cstdint>

namespace orrery {

enum class RouterActivation : std::uint8_t { kSoftmax, kSigmoid };

// scores[tokens, experts_total] = activation(x[tokens, hidden] w[experts_total, hidden]^T + bias)
struct RoutingScoresShape {
  std::int64_t tokens = 0;         // may be 0
  std::int64_t hidden = 8;         // a multiple of 8: rows of 16 bytes
  std::int64_t experts_total = 1;  // 1 to 512
  RouterActivation activation = RouterActivation::kSoftmax;
};

inline constexpr std::int64_t kMostScores = 512;

// Throws std::invalid_argument, naming the field, when one is out of range or past 2^31 - 1.
void require_routing_scores_shape(const RoutingScoresShape& shape);

// Columns of an MMA that hold all experts: 16, 32, 64, 128, 256 or 512.
int routing_scores_columns(const RoutingScoresShape& shape);

// A block holds `rows` tokens against `columns` experts: all of them, or for a sigmoid, which needs
// no sum over experts, some. The blocks of a cluster share the tokens, each takes a stretch of
// hidden.
struct RoutingScoresTile {
  int rows = 64;  // 64, with at most 256 columns 128, with at most 128 also 16, 32 and 256
  int columns = 16;
  int cluster = 1;  // 1, 2, 4, 8 or 16
  bool operator==(const RoutingScoresTile&) const = default;
};

// Whether blocks of a tile send each other their logits, which then lie behind the stages, or each
// takes what it needs from the others, where they lie in place of stages.
constexpr bool routing_scores_are_sent(int columns, int rows) {
  return rows <= 64 && columns <= 256;
}

// The shared memory of a block, in bytes.
struct RoutingScoresLayout {
  int stage_bytes = 0;
  int stages = 0;
  int logits_at = 0;
  int logits_stride = 0;  // floats
  int barriers_at = 0;
  int shared_bytes = 0;  // in all
};
RoutingScoresLayout routing_scores_layout(int columns, int rows);

// The tile of a shape on a GPU that runs so many clusters of 1, 2, 4, 8 and 16 blocks at once, an
// SM for each block: that by which an SM reads and exchanges least.
RoutingScoresTile choose_routing_scores(const RoutingScoresShape& shape,
                                        const std::array<int, 5>& most_clusters);

}  // namespace orrery
