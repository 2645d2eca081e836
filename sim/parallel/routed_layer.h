#pragma once

// The ops of routed experts in a plan, as sim/model lowers design shuffling (and the grouped gemm's
// scatter-add), and who computes what of them on a mesh.

#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/model/expert_load.h"
#include "sim/parallel/parallel.h"
#include "sim/parallel/rewrite.h"
#include "sim/plan/plan.h"

namespace orrery {

// Op ids of one layer, in the order shuffle < shared < gather < experts < scatter.
struct RoutedLayer {
  OpId shuffle = -1;
  std::vector<OpId> shared;  // the shared expert: all between shuffle and gather
  OpId gather = -1;
  bool gathers_in_gemm = false;  // `gather` is the first grouped gemm, which reads tokens' rows
  std::vector<OpId> experts;     // grouped gemms and what is between them
  OpId scatter = -1;             // -1: the last of `experts` adds its rows to the output itself
};

// The layer whose index_shuffling is op `shuffle`. Throws std::invalid_argument naming the op that
// is missing, or one that reads counts on the host.
RoutedLayer routed_layer(const Plan& plan, OpId shuffle);

// Part of an axis, if it is of experts or their columns, that one rank has; other axes stay as they
// are. Throws std::invalid_argument when it does not divide.
std::int64_t expert_share(std::string_view name, std::int64_t size, const Mesh& mesh);
// The axis with such a part, split as ExpertGrid says.
Axis expert_axis(Rewrite& rewrite, const Axis& axis, const Mesh& mesh);
// The op with such parts of its dims.
Op sharded(Op op, const Mesh& mesh);

// Where a rank's block of experts stands among the ep blocks, its range among the ranges, and its
// slice of columns among the slices. Without the grid of ExpertGrid, blocks of neighbours.
Place expert_block(const Mesh& mesh);
Place expert_range(const Mesh& mesh);
Place expert_slice(const Mesh& mesh);

// Whether a plan routes by ops of its own (index_shuffling) rather than inside one fused op.
bool has_shuffling(const Plan& plan);

// Where routed experts, redundant ones included, lie on a stage of dp x tp ranks. They form ep
// blocks of neighbouring experts. Ranks of one data-parallel group (equal tp rank) hold dp blocks
// that follow each other, their range; within a tp group, ep / dp ranges lie beside each other, and
// the ranks that share one hold slices of its experts' columns:
//
//   block of rank (d, t) = (t / slices) dp + d          slices = dp tp / ep
//
// With tp 1, or ep = dp: block d. With dp 1: block t / slices. A rank sends rows of its tokens to
// its data-parallel group alone; what the ranges and slices of a tp group add up to is reduced over
// tp, as all results of tensor parallelism are.
class ExpertGrid {
 public:
  // `experts` without redundant ones; dp divides ep. Throws std::invalid_argument unless ep divides
  // dp * tp and the experts in all, and mesh.expert_load fits them. `routed_share` of the tokens
  // choose experts, the others pad.
  ExpertGrid(const Mesh& mesh, std::int64_t experts, std::int64_t topk, std::int64_t tokens,
             double routed_share = 1);

  [[nodiscard]] std::int64_t block_of(int rank) const;
  [[nodiscard]] std::int64_t num_slices() const { return slices_; }
  [[nodiscard]] std::int64_t block_experts() const { return block_experts_; }
  [[nodiscard]] std::int64_t range_experts() const { return block_experts_ * dp_; }
  // Rows of a rank's tokens that go to a block of N experts, or to all of its range: at most
  // min(N, topk) for each token.
  [[nodiscard]] std::int64_t block_bound() const;
  [[nodiscard]] std::int64_t range_bound() const;

  // Expected for `tokens` tokens of each data-parallel rank. Choices that are all alike still fall
  // unevenly on the blocks, anew in each layer, and ranks wait for the one with most: what is
  // computed is then that of the fullest of the ep blocks. Rows and active experts of blocks are
  // taken as normal: of n with variance v and covariance c, mean + e(n) sqrt(v - c), where e(n) is
  // the expected largest of n standard normals;
  //   rows    v - c = T K / n (E - K) / (E - 1)             T: tokens of all ranks
  //   active  v - c = E / n (q1 - q2)       qi: probability that i experts have no rows
  [[nodiscard]] double rows_to_range(int rank) const;      // rows that the rank sends, its own too
  [[nodiscard]] ExpectedDims computed_on(int rank) const;  // rows from all ranks, active experts
  // Rows that leave the rank of `rank`'s data-parallel group that sends most, or that reach the one
  // that receives most, whichever are more.
  [[nodiscard]] double most_travelling(int rank) const;

 private:
  [[nodiscard]] double block_rows(std::int64_t block) const;
  void find_fullest(int blocks);

  int dp_;
  int tp_;
  std::int64_t topk_;
  std::int64_t tokens_;
  double routed_;  // of the tokens
  std::int64_t slices_ = 1;
  std::int64_t block_experts_ = 1;
  std::vector<double> rows_;    // by block: expected of one data-parallel rank's tokens
  std::vector<double> active_;  // by block: experts that tokens of any rank choose
  // The fullest block's, beyond the average.
  double more_rows_ = 0;
  double more_active_ = 0;
};

}  // namespace orrery
