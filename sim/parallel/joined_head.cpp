// The LM head over the ranks of all data-parallel groups: its vocabulary is divided over dp as well
// as tp, and the sampled rows of all groups are joined into one GEMM, which is less flat:
//
//   all_gather over dp   [m, hidden] -> [dp m, hidden]
//   lm_head              [dp m, hidden] x [vocab / (tp dp), hidden]
//   all_to_all over dp   [dp m, vocab / (tp dp)] -> [m, vocab / tp]
//
// Each rank computes as much as before and reads 1 / dp of the weights. Logits arrive in dp blocks
// of columns, one behind the other; sampling is taken to read them so, without a transposition.

#include <algorithm>

#include "kernels/kernel_spec.h"
#include "sim/parallel/rewrite.h"

namespace orrery {
namespace {

class JoinedHead {
 public:
  JoinedHead(const Plan& plan, const Mesh& mesh)
      : source_(plan), mesh_(mesh), stride_(mesh.tp * mesh.cp), rewrite_(plan, 1) {}

  Plan run() {
    const OpId head = find_head();
    const TensorId weights = head < 0 ? -1 : op_at(head).reads[1].tensor;
    TensorId tensor_id = 0;
    rewrite_.copy_tensors([&](Tensor& tensor) {
      if (tensor_id++ != weights) return;
      for (Axis& entry : tensor.axes) entry = divided(entry);
    });
    for (OpId id = 0; static_cast<std::size_t>(id) < source_.ops().size(); ++id) {
      rewrite_.begin(id);
      if (id == head) {
        join(id);
      } else {
        rewrite_.copy(id, op_at(id));
      }
    }
    return rewrite_.finish();
  }

 private:
  [[nodiscard]] const Op& op_at(OpId id) const {
    return source_.ops()[static_cast<std::size_t>(id)];
  }
  // The GEMM from sampled rows to the vocabulary; -1 in a step that samples nothing.
  [[nodiscard]] OpId find_head() const {
    for (auto id = static_cast<OpId>(source_.ops().size()) - 1; id >= 0; --id) {
      const auto* kernel = std::get_if<KernelOp>(&op_at(id).body);
      if (kernel == nullptr || kernel->dims.size() != 3) continue;
      const bool is_gemm = kernel_spec(kernel->kernel).prior.arithmetic == Arithmetic::kGemm;
      if (is_gemm && kernel->dims[0].axis == axis::kSeqs && kernel->dims[1].axis == axis::kVocab) {
        return id;
      }
    }
    return -1;
  }
  Axis divided(const Axis& axis) {
    if (axis.name != axis::kVocab) return axis;
    return rewrite_.divided(axis, Place().add({.ways = mesh_.dp, .stride = stride_}));
  }

  void join(OpId id) {
    Op op = op_at(id);
    auto& dims = std::get<KernelOp>(op.body).dims;
    const TensorId rows = op.reads[0];
    const TensorId logits = op.writes[0];
    const std::int64_t own = dims[0].size;
    const Axis joined{std::string(axis::kSeqs), own * mesh_.dp};
    const Axis hidden = rewrite_.tensor(rows).axes.back();
    const TensorId all_rows = rewrite_.add_tensor_like(rows, ".joined", {joined, hidden});
    const Axis columns = divided(rewrite_.tensor(logits).axes.back());
    const TensorId all_logits = rewrite_.add_tensor_like(logits, ".joined", {joined, columns});
    const auto groups = rewrite_.groups_of(rewrite_.group(op.ranks), mesh_.dp, stride_);
    rewrite_.insert_collectives(op.name + ".all_gather",
                                {.kind = CollectiveKind::kAllGather,
                                 .dtype = rewrite_.tensor(rows).dtype,
                                 .bytes_per_rank = bytes_of(rewrite_.tensor(all_rows)) / mesh_.dp},
                                groups, {rows}, {all_rows});
    const std::string name = op.name;
    dims[0].size = joined.size;
    dims[1].size = columns.size;
    op.reads[0] = all_rows;
    op.writes[0] = all_logits;
    rewrite_.copy(id, std::move(op));
    rewrite_.insert_collectives(name + ".all_to_all",
                                {.kind = CollectiveKind::kAllToAll,
                                 .dtype = rewrite_.tensor(all_logits).dtype,
                                 .bytes_per_rank = bytes_of(rewrite_.tensor(all_logits))},
                                groups, {all_logits}, {logits});
  }

  const Plan& source_;
  const Mesh& mesh_;
  int stride_;  // between ranks of a data-parallel group
  Rewrite rewrite_;
};

}  // namespace

bool joined_head_applies(const Plan& /*plan*/, const Mesh& mesh) {
  return mesh.lm_head == LmHead::kJoined && mesh.dp > 1;
}

Plan joined_head_pass(const Plan& plan, const Mesh& mesh) { return JoinedHead(plan, mesh).run(); }

}  // namespace orrery
