// Data parallelism: each dp rank has its share of the rows of a step, and a micro-batch of a
// pipeline its share of that. Weights are replicated. With balanced rows (DpRows) those are the
// rows of attention alone, and all else has an even part.

#include <algorithm>
#include <optional>

#include "kernels/kernel_spec.h"
#include "sim/parallel/balanced_rows.h"
#include "sim/parallel/rank_rows.h"
#include "sim/parallel/rewrite.h"

namespace orrery {
namespace {

// Of the fullest rank, read off the kernels of a plan.
RankRows rank_rows(const Plan& plan, const Mesh& mesh) {
  const std::int64_t ways = static_cast<std::int64_t>(mesh.dp) * mesh.num_micro_batches;
  std::int64_t tokens = 0;
  std::int64_t prefill_rows = 0;
  std::int64_t decode_rows = 0;
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr) continue;
    if (tokens == 0) tokens = find_dim(kernel->dims, "tokens", axis::kTokens).value_or(0);
    const auto batch = find_dim(kernel->dims, "batch", axis::kSeqs);
    if (!batch) continue;
    if (const auto query = find_dim(kernel->dims, "query", "")) {
      prefill_rows = std::max(prefill_rows, ceil_div(*batch, ways) * *query);
    } else {
      decode_rows = std::max(decode_rows, ceil_div(*batch, ways));
    }
  }
  return {mesh, tokens, prefill_rows, decode_rows};
}

}  // namespace

bool data_applies(const Plan& /*plan*/, const Mesh& mesh) {
  return mesh.dp > 1 || mesh.num_micro_batches > 1;
}

Plan data_pass(const Plan& plan, const Mesh& mesh, std::int64_t fullest_rows) {
  RankRows fullest = rank_rows(plan, mesh);
  if (fullest_rows > 0) fullest.rows = fullest_rows;
  const OwnRows own = own_rows(plan, mesh);
  const bool is_balanced = mesh.dp_rows == DpRows::kBalanced;
  const RowShares own_share(plan, fullest, mesh.expert_load);
  const RowShares even_share(plan, is_balanced ? RankRows(mesh, fullest.tokens, 0, 0) : fullest,
                             mesh.expert_load);
  const auto share_of = [&](bool is_own) -> const RowShares& {
    return is_own ? own_share : even_share;
  };
  Rewrite rewrite(plan, mesh.dp);
  const Digit of_micro_batch{.ways = mesh.num_micro_batches, .stride = kOfMicroBatch};
  const Place rows = Place().add({.ways = mesh.dp, .stride = 1}).add(of_micro_batch);
  const Place routed_tokens = Place().add(of_micro_batch);
  std::size_t at = 0;
  rewrite.copy_tensors([&](Tensor& tensor) {
    const RowShares& share = share_of(own.tensors[at++]);
    for (Axis& entry : tensor.axes) {
      const std::int64_t size = share(entry.name, entry.size);
      if (entry.name == axis::kTokens || entry.name == axis::kSeqs) {
        entry = rewrite.divided(entry, rows, size);
      } else if (entry.name == axis::kRoutedTokens) {
        entry = rewrite.divided(entry, routed_tokens, size);
      } else {
        entry.size = size;  // routing decides which rows of experts a rank has
      }
    }
  });
  for (OpId id = 0; static_cast<std::size_t>(id) < plan.ops().size(); ++id) {
    Op op = plan.ops()[static_cast<std::size_t>(id)];
    if (auto* kernel = std::get_if<KernelOp>(&op.body)) {
      const RowShares& share = share_of(own.ops[static_cast<std::size_t>(id)]);
      for (Dim& entry : kernel->dims) entry.size = share(entry.axis, entry.size);
    }
    rewrite.begin(id);
    rewrite.copy(id, std::move(op));
  }
  return rewrite.finish();
}

}  // namespace orrery
