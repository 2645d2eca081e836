// Data parallelism: each dp rank has its share of the rows of a step, and a micro-batch of a
// pipeline its share of that. Weights are replicated.

#include <algorithm>
#include <optional>

#include "sim/parallel/rewrite.h"

namespace orrery {
namespace {

std::optional<std::int64_t> find_dim(const Dims& dims, std::string_view name,
                                     std::string_view axis) {
  for (const Dim& entry : dims) {
    if (entry.name == name) return entry.axis == axis ? std::optional(entry.size) : std::nullopt;
  }
  return std::nullopt;
}

// Rows of the fullest rank. Sequences are dealt out whole, so where there are fewer prefill chunks
// than ranks a rank has more than tokens / ways rows; the step takes as long as that rank does.
class RowShares {
 public:
  RowShares(const Plan& plan, const Mesh& mesh)
      : ways_(static_cast<std::int64_t>(mesh.dp) * mesh.num_micro_batches),
        num_micro_batches_(mesh.num_micro_batches) {
    std::int64_t prefill_rows = 0;
    std::int64_t decode_rows = 0;
    for (const Op& op : plan.ops()) {
      const auto* kernel = std::get_if<KernelOp>(&op.body);
      if (kernel == nullptr) continue;
      if (tokens_ == 0) {
        tokens_ = find_dim(kernel->dims, "tokens", axis::kTokens).value_or(0);
      }
      const auto batch = find_dim(kernel->dims, "batch", axis::kSeqs);
      if (!batch) continue;
      if (const auto query = find_dim(kernel->dims, "query", "")) {
        prefill_rows = std::max(prefill_rows, ceil_div(*batch, ways_) * *query);
      } else {
        decode_rows = std::max(decode_rows, ceil_div(*batch, ways_));
      }
    }
    rows_ = std::min(tokens_, std::max(ceil_div(tokens_, ways_), prefill_rows + decode_rows));
    find_active(plan, mesh.expert_load);
  }

  std::int64_t operator()(std::string_view name, std::int64_t size) const {
    if (name == axis::kSeqs) return ceil_div(size, ways_);
    if (name == axis::kRoutedTokens) return ceil_div(size, num_micro_batches_);
    if (name == axis::kActiveExperts) return std::min(size, active_);
    if ((name != axis::kTokens && name != axis::kRoutedRows) || tokens_ == 0) return size;
    return size == tokens_ ? rows_ : ceil_div(size * rows_, tokens_);
  }

 private:
  // Fewer tokens choose fewer experts. Redundant experts are the expert pass's.
  void find_active(const Plan& plan, const ExpertLoad& mesh_load) {
    for (const Op& op : plan.ops()) {
      const auto* kernel = std::get_if<KernelOp>(&op.body);
      if (kernel == nullptr || kernel->kernel != "index_shuffling") continue;
      const std::int64_t experts = dim(kernel->dims, "experts_total");
      const bool is_of_experts = std::ssize(mesh_load.shares) == experts;
      const ExpertLoad load = is_of_experts ? mesh_load : ExpertLoad{};
      active_ = expected_dims(load, experts, dim(kernel->dims, "topk"), rows_, 0, experts).active;
      return;
    }
  }

  std::int64_t ways_;
  std::int64_t num_micro_batches_;
  std::int64_t tokens_ = 0;  // rows of the whole step
  std::int64_t rows_ = 0;    // of the fullest rank
  std::int64_t active_ = 0;  // experts that its tokens choose
};

}  // namespace

bool data_applies(const Plan& /*plan*/, const Mesh& mesh) {
  return mesh.dp > 1 || mesh.num_micro_batches > 1;
}

Plan data_pass(const Plan& plan, const Mesh& mesh) {
  const RowShares share(plan, mesh);
  Rewrite rewrite(plan, mesh.dp);
  rewrite.copy_tensors([&](Tensor& tensor) { shard_axes(tensor, share); });
  for (OpId id = 0; static_cast<std::size_t>(id) < plan.ops().size(); ++id) {
    Op op = plan.ops()[static_cast<std::size_t>(id)];
    if (auto* kernel = std::get_if<KernelOp>(&op.body)) {
      for (Dim& entry : kernel->dims) entry.size = share(entry.axis, entry.size);
    }
    rewrite.begin(id);
    rewrite.copy(id, std::move(op));
  }
  return rewrite.finish();
}

}  // namespace orrery
