#pragma once

// What passes share: copying a plan op by op with ops inserted in between, and collectives over
// every group of ranks that a split makes.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/kernel_spec.h"
#include "sim/parallel/parallel.h"
#include "sim/plan/plan.h"

namespace orrery {

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// size / ways. Throws std::invalid_argument naming the axis when it does not divide.
std::int64_t exact_share(std::string_view axis, std::int64_t size, std::int64_t ways);

bool has_axis(const Tensor& tensor, std::string_view axis);

// The kernel that adds two tensors of the residual stream.
const KernelSpec& residual_sum();

// Stages of a pipeline: the repeat copies each takes, as even as possible. What is left over goes
// to the stages before the last, which holds the LM head, from the back (as vLLM's get_pp_indices).
std::vector<std::int64_t> stage_shares(std::int64_t num_units, int num_stages);
// Of each layer the stage that has it, ascending; repeats of a run of layers are not divided.
std::vector<std::size_t> stages_of_layers(std::span<const LayerConfig> layers, int num_stages);

// A copy of `source` in the making. Every rank r of the source becomes the ranks
// ways * r ... ways * r + ways - 1; tensor and split ids are kept, later ones are appended.
//
//   for each op of the source:   if (at_run_boundary(id)) insert(...);   // outside the run
//                                begin(id);
//                                insert(...);                            // inside the run
//                                copy(id, std::move(op));
//   finish();
class Rewrite {
 public:
  Rewrite(const Plan& source, int ways);

  // Group of the new plan for a group of the source.
  [[nodiscard]] GroupId group(GroupId source_group) const {
    return groups_[static_cast<std::size_t>(source_group)];
  }
  // Copies all tensors, each changed by change(tensor) first.
  template <typename Change>
  void copy_tensors(const Change& change) {
    for (const Tensor& original : source_.tensors()) {
      Tensor tensor = original;
      tensor.ranks = group(tensor.ranks);
      change(tensor);
      plan_.add_tensor(std::move(tensor));
    }
  }
  [[nodiscard]] const Tensor& tensor(TensorId id) const {
    return plan_.tensors()[static_cast<std::size_t>(id)];
  }
  // `axis`, each part of it divided over the places of `digits`; `share` elements each where there
  // is one part and they are more than needed.
  [[nodiscard]] Axis divided(const Axis& axis, const Place& digits, std::int64_t share = 0);
  // `axis` of `size` on each rank, split so.
  [[nodiscard]] Axis with_split(const Axis& axis, const Split& split);
  // A new tensor like `id` under the name "<name><suffix>".
  TensorId add_tensor_like(TensorId id, std::string_view suffix, const std::vector<Axis>& axes);
  TensorId add_tensor(Tensor tensor) { return plan_.add_tensor(std::move(tensor)); }

  // Whether a repeated run starts or ends at this op of the source. What is inserted before begin()
  // stands outside a run that starts here, and inside one that ends here.
  [[nodiscard]] bool at_run_boundary(OpId id) const;
  void begin(OpId id);
  // `op` is the source's op `id`, perhaps changed; its ranks and `after` are still the source's.
  void copy(OpId id, Op op);
  // What stands for op `id` of the source, which has been copied.
  [[nodiscard]] OpId copy_of(OpId id) const { return copies_[static_cast<std::size_t>(id)]; }
  // Leaves op `id` out; `after` it is after what came before it.
  void drop(OpId id);
  OpId insert(Op op) { return plan_.add_op(std::move(op)); }
  // One collective for each of `groups`. Names get the group's first rank when there are several.
  void insert_collectives(std::string_view name, CommOp body, const std::vector<GroupId>& groups,
                          const TensorViews& reads, const TensorViews& writes);
  // Op `id` as a collective of another kind, which its name says.
  void copy_as(OpId id, Op op, CollectiveKind kind);
  GroupId add_group(std::vector<int> ranks) { return plan_.add_group(std::move(ranks)); }
  [[nodiscard]] std::span<const int> ranks(GroupId group) const { return plan_.ranks(group); }
  [[nodiscard]] GroupId ranks_of(OpId id) const {  // of the new plan
    return plan_.ops()[static_cast<std::size_t>(id)].ranks;
  }
  // Groups of `size` ranks of the new plan's `ranks` that lie `stride` apart.
  std::vector<GroupId> groups_of(GroupId ranks, int size, int stride);

  [[nodiscard]] Plan finish();

 private:
  const Plan& source_;
  Plan plan_;
  std::vector<GroupId> groups_;   // by group of the source
  std::vector<OpId> first_;       // by op of the source: where what stands for it begins
  std::vector<OpId> copies_;      // by op of the source: the op itself
  std::vector<bool> boundaries_;  // by op of the source, one more at the end
  struct Division {
    std::int64_t size = 0;
    SplitId split = kNoSplit;
    std::int64_t share = 0;
    Place digits;
    Axis result;  // without a name
  };
  std::vector<Division> divisions_;  // made so far
};

// The passes, in files of their own.
bool data_applies(const Plan& plan, const Mesh& mesh);
// `fullest_rows` as of parallelize.
Plan data_pass(const Plan& plan, const Mesh& mesh, std::int64_t fullest_rows);
bool tensor_applies(const Plan& plan, const Mesh& mesh);
Plan tensor_pass(const Plan& plan, const Mesh& mesh);
bool balanced_rows_applies(const Plan& plan, const Mesh& mesh);
Plan balanced_rows_pass(const Plan& plan, const Mesh& mesh);
// Follows the tensor pass at once, which leaves what merging needs: heads over tp before it, over
// tp * cp behind it.
bool context_applies(const Plan& plan, const Mesh& mesh);
Plan context_pass(const Plan& plan, const Mesh& mesh);
bool expert_applies(const Plan& plan, const Mesh& mesh);
Plan expert_pass(const Plan& plan, const Mesh& mesh);
bool sharded_weights_applies(const Plan& plan, const Mesh& mesh);
Plan sharded_weights_pass(const Plan& plan, const Mesh& mesh);
bool joined_head_applies(const Plan& plan, const Mesh& mesh);
Plan joined_head_pass(const Plan& plan, const Mesh& mesh);
bool split_reduce_applies(const Plan& plan, const Mesh& mesh);
Plan split_reduce_pass(const Plan& plan, const Mesh& mesh);
bool sequence_applies(const Plan& plan, const Mesh& mesh);
Plan sequence_pass(const Plan& plan, const Mesh& mesh);
bool pipeline_applies(const Plan& plan, const Mesh& mesh);
Plan pipeline_pass(const Plan& plan, const Mesh& mesh);
bool afd_applies(const Plan& plan, const Mesh& mesh);
// Of a plan of one rank: runs the other passes on attention and on FFNs, and joins the two.
// `fullest_rows` as of parallelize.
Plan afd_pass(const Plan& plan, const Mesh& mesh, std::int64_t fullest_rows);
bool two_batch_applies(const Plan& plan, const Mesh& mesh);
Plan two_batch_pass(const Plan& plan, const Mesh& mesh);
bool room_for_collectives_applies(const Plan& plan, const Mesh& mesh);
Plan room_for_collectives_pass(const Plan& plan, const Mesh& mesh);

// Whether it brings rows to other ranks: a collective, or a kernel of DeepEP.
bool is_transfer(const Op& op);

// A mesh with cp as passes see it to which ranks with other parts of the context are like ranks of
// tp, where weights are split over cp, or of dp, where rows are dealt out to them.
Mesh weights_mesh(const Mesh& mesh);

// Whether results of routed experts come back by all_to_all, so that they are whole on arrival.
bool uses_all_to_all(const Mesh& mesh);

}  // namespace orrery
