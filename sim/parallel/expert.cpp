// Expert parallelism (GShard, arXiv 2006.16668): routed experts lie on ep x (dp tp / ep) ranks,
// whole experts over ep and slices of their columns over the rest. With one data-parallel rank all
// ranks have all tokens and the tensor pass adds up the results. With more, tokens and results
// travel:
//
//   all_to_all:  dispatch tokens topk rows -> experts -> combine -> [all_gather over tp]
//   deepep:      the same with kernels of DeepEP (github.com/deepseek-ai/DeepEP), which send a
//   token
//                once to each node that has one of its experts, in FP8 where experts read it so;
//                few tokens, of decodes, go by its low-latency kernels, once for each expert
//   all_gather:  all_gather over dp -> experts -> reduce_scatter over dp -> [all_reduce over tp]
//
// Ranks of a tp group hold the same tokens, so with all_to_all each sends a slice of them.
//
// This is about the fused `moe` op; plans that route by ops of their own are expert_flows.cpp's.

#include <algorithm>
#include <stdexcept>

#include "sim/parallel/expert_flows.h"
#include "sim/parallel/rewrite.h"
#include "sim/parallel/routed_layer.h"

namespace orrery {
namespace {

// Tokens of a rank up to which SGLang's decodes go by the low-latency kernels (256 sequences on
// each of 72 GPUs: lmsys.org, Deploying DeepSeek with PD disaggregation and large-scale EP,
// 2025-05-05).
constexpr std::int64_t kLowLatencyTokens = 256;

// Kernels of DeepEP are named so, and then dispatch or combine.
constexpr std::string_view kDeepEp = "deepep_";

bool is_routed_axis(std::string_view name) {
  return name == axis::kExperts || name == axis::kExpertFfn;
}

class ExpertPass {
 public:
  ExpertPass(const Plan& plan, const Mesh& mesh)
      : source_(plan), mesh_(mesh), rewrite_(plan, 1), stage_ranks_(mesh.dp * mesh.tp) {
    if (stage_ranks_ % mesh.ep != 0) {
      throw std::invalid_argument("ep is " + std::to_string(mesh.ep) +
                                  ", expected a divisor of dp * tp, " +
                                  std::to_string(stage_ranks_));
    }
  }

  Plan run() {
    rewrite_.copy_tensors([&](Tensor& tensor) {
      for (Axis& entry : tensor.axes) entry = expert_axis(rewrite_, entry, mesh_);
    });
    for (OpId id = 0; static_cast<std::size_t>(id) < source_.ops().size(); ++id) {
      Op op = source_.ops()[static_cast<std::size_t>(id)];
      rewrite_.begin(id);
      auto* kernel = std::get_if<KernelOp>(&op.body);
      const bool is_routed =
          kernel != nullptr && std::ranges::any_of(kernel->dims, is_routed_axis, &Dim::axis);
      if (!is_routed) {
        rewrite_.copy(id, std::move(op));
        continue;
      }
      for (Dim& entry : kernel->dims) {
        entry.size = expert_share(entry.axis, entry.size, mesh_);
        if (entry.name == "experts_total") entry.size += mesh_.num_redundant_experts;
      }
      const bool is_layer = routed_role(*kernel) == RoutedRole::kLayer;
      check_moe_chunks(mesh_, is_layer ? MoeDesign::kPersistent : MoeDesign::kFused);
      if (is_layer) {
        check_layer(*kernel);
        rewrite_.copy(id, std::move(op));
      } else if (mesh_.dp == 1) {
        rewrite_.copy(id, std::move(op));
      } else if (uses_all_to_all(mesh_)) {
        dispatch_by_all_to_all(id, std::move(op));
      } else {
        dispatch_by_all_gather(id, std::move(op));
      }
    }
    return rewrite_.finish();
  }

 private:
  // One kernel for a layer sends rows by itself, from the tokens of each rank to its experts'.
  void check_layer(const KernelOp& kernel) const {
    check_persistent_mesh(mesh_);
    if (dim(kernel.dims, "experts_total") % mesh_.ep == 0) return;
    throw std::invalid_argument("moe design persistent: ep is " + std::to_string(mesh_.ep) +
                                ", expected a divisor of the experts, " +
                                std::to_string(dim(kernel.dims, "experts_total")));
  }
  [[nodiscard]] bool is_activation(TensorId id) const {
    return rewrite_.tensor(id).role != TensorRole::kWeight;
  }

  // Rows of all data-parallel ranks, or those that routing brings to a rank: parts of no whole.
  TensorId with_rows(TensorId id, std::string_view suffix, std::int64_t rows) {
    std::vector<Axis> axes = rewrite_.tensor(id).axes;
    for (Axis& entry : axes) {
      if (entry.name == axis::kTokens) entry = {entry.name, rows};
    }
    return rewrite_.add_tensor_like(id, suffix, axes);
  }
  // The rows that one rank of a tensor-parallel group sends and gets back.
  TensorId slice_of_rows(TensorId id) {
    std::vector<Axis> axes = rewrite_.tensor(id).axes;
    const Place over_tp = Place().add({.ways = mesh_.tp, .stride = 1});
    for (Axis& entry : axes) {
      if (entry.name == axis::kTokens) entry = rewrite_.divided(entry, over_tp);
    }
    return rewrite_.add_tensor_like(id, ".slice", axes);
  }

  [[nodiscard]] std::int64_t rows_of(TensorId id) const {
    const Tensor& tensor = rewrite_.tensor(id);
    const auto tokens = std::ranges::find(tensor.axes, axis::kTokens, &Axis::name);
    if (tokens == tensor.axes.end()) {
      throw std::invalid_argument("tensor \"" + tensor.name +
                                  "\" of a routed op has no axis tokens, expected one");
    }
    return tokens->size;
  }

  void collective(const std::string& name, CollectiveKind kind, DType dtype, Bytes bytes, int size,
                  int stride, const TensorViews& reads, const TensorViews& writes, GroupId ranks) {
    rewrite_.insert_collectives(name, {.kind = kind, .dtype = dtype, .bytes_per_rank = bytes},
                                rewrite_.groups_of(ranks, size, stride), reads, writes);
  }

  // `tokens` of a rank.
  void deepep(const std::string& name, const std::string& part, const KernelOp& experts,
              DType dtype, std::int64_t tokens, const TensorViews& reads, const TensorViews& writes,
              GroupId ranks) {
    const bool is_low_latency = tokens <= kLowLatencyTokens;
    rewrite_.insert({.name = name + "." + part,
                     .body = KernelOp{.kernel = std::string(kDeepEp) + part,
                                      .dtype = dtype,
                                      .dims = {{"tokens", tokens, std::string(axis::kTokens)},
                                               {"hidden", dim(experts.dims, "hidden"), ""},
                                               {"topk", dim(experts.dims, "topk"), ""},
                                               {"ranks", stage_ranks_, ""},
                                               {"low_latency", is_low_latency ? 1 : 0, ""}}},
                     .ranks = ranks,
                     .reads = reads,
                     .writes = writes,
                     .after = {}});
  }

  void dispatch_by_all_gather(OpId id, Op op) {
    const GroupId ranks = rewrite_.group(op.ranks);
    const int stride = mesh_.cp * mesh_.tp;
    const std::string name = op.name;
    TensorViews parts;
    TensorViews wholes;
    Bytes contribution;
    for (TensorView& read : op.reads) {
      if (!is_activation(read)) continue;
      parts.push_back(read);
      contribution += bytes_of(rewrite_.tensor(read));
      read.tensor = with_rows(read, ".all", mesh_.dp * rows_of(read));
      wholes.push_back(read);
    }
    collective(name + ".all_gather", CollectiveKind::kAllGather,
               rewrite_.tensor(parts.front()).dtype, contribution, mesh_.dp, stride, parts, wholes,
               ranks);
    const TensorId output = op.writes.front();
    const TensorId whole = with_rows(output, ".all", mesh_.dp * rows_of(output));
    op.writes.front() = whole;
    rewrite_.copy(id, std::move(op));
    collective(name + ".reduce_scatter", CollectiveKind::kReduceScatter,
               rewrite_.tensor(whole).dtype, bytes_of(rewrite_.tensor(whole)), mesh_.dp, stride,
               {whole}, {output}, ranks);
  }

  void dispatch_by_all_to_all(OpId id, Op op) {
    const KernelOp kernel = std::get<KernelOp>(op.body);
    const GroupId ranks = rewrite_.group(op.ranks);
    const std::string name = op.name;
    const std::int64_t topk = dim(kernel.dims, "topk");
    const std::int64_t routed_rows = ceil_div(dim(kernel.dims, "tokens") * topk, mesh_.ep);

    // The first activation holds the rows, the others (routing) go with them.
    TensorViews sent;
    TensorViews reads;
    for (const TensorView& read : op.reads) (is_activation(read) ? sent : reads).push_back(read);
    const std::int64_t sent_rows = ceil_div(rows_of(sent.front()), mesh_.tp) * topk;
    const auto row_bytes = [&](TensorId tensor) {
      return bytes_of(rewrite_.tensor(tensor)) / static_cast<double>(rows_of(tensor));
    };
    const TensorId dispatched = with_rows(sent.front(), ".dispatched", routed_rows);
    const auto exchange = [&](const std::string& part, TensorId row, const TensorViews& from,
                              const TensorViews& to) {
      const DType dtype = rewrite_.tensor(row).dtype;
      if (mesh_.expert_comm == ExpertComm::kDeepEp) {
        deepep(name, part, kernel, dtype, sent_rows / topk, from, to, ranks);
        return;
      }
      collective(name + "." + part, CollectiveKind::kAllToAll, dtype,
                 row_bytes(row) * static_cast<double>(sent_rows), stage_ranks_, mesh_.cp, from, to,
                 ranks);
    };
    exchange("dispatch", dispatched, sent, {dispatched});
    reads.insert(reads.begin(), dispatched);
    op.reads = reads;

    const TensorId output = op.writes.front();
    const TensorId computed = with_rows(output, ".computed", routed_rows);
    op.writes.front() = computed;
    rewrite_.copy(id, std::move(op));

    const bool is_sliced = mesh_.tp > 1;
    const TensorId combined = is_sliced ? slice_of_rows(output) : output;
    exchange("combine", computed, {computed}, {combined});
    if (is_sliced) {
      collective(name + ".all_gather", CollectiveKind::kAllGather, rewrite_.tensor(output).dtype,
                 bytes_of(rewrite_.tensor(combined)), mesh_.tp, 1, {combined}, {output}, ranks);
    }
  }

  const Plan& source_;
  const Mesh& mesh_;
  Rewrite rewrite_;
  int stage_ranks_;
};

}  // namespace

void check_persistent_mesh(const Mesh& mesh) {
  const auto fail = [](const std::string& what) {
    throw std::invalid_argument("moe design persistent: " + what);
  };
  for (const auto& [name, ways] : {std::pair("tp", mesh.tp), std::pair("cp", mesh.cp)}) {
    if (ways == 1) continue;
    fail(std::string(name) + " is " + std::to_string(ways) +
         ", expected 1: each rank has tokens of its own; or design shuffling");
  }
  if (mesh.ep != mesh.dp) {
    fail("ep is " + std::to_string(mesh.ep) + " with dp " + std::to_string(mesh.dp) +
         ", expected as much: each rank has tokens and a part of the experts");
  }
  if (mesh.ep > kMostPersistentRanks) {
    fail("ep is " + std::to_string(mesh.ep) + ", expected at most " +
         std::to_string(kMostPersistentRanks) + ": the GPUs of a host");
  }
  if (mesh.num_redundant_experts > 0) {
    fail("num_redundant_experts is " + std::to_string(mesh.num_redundant_experts) +
         ", expected 0, or design shuffling");
  }
  if (mesh.two_batch_overlap || mesh.ffn_instances > 0) {
    fail(
        "one kernel holds router, experts and what moves, so nothing of it can be put apart; "
        "expected no two_batch_overlap and no ffn_instances, or design shuffling");
  }
  if (mesh.expert_comm != ExpertComm::kAllToAll) {
    fail("expert_comm is " +
         std::string(kExpertCommNames[static_cast<std::size_t>(mesh.expert_comm)]) +
         ", expected all_to_all: the kernel sends rows by itself");
  }
}

bool is_transfer(const Op& op) {
  const auto* kernel = std::get_if<KernelOp>(&op.body);
  return kernel != nullptr ? kernel->kernel.starts_with(kDeepEp)
                           : std::holds_alternative<CommOp>(op.body);
}

bool expert_applies(const Plan& plan, const Mesh& mesh) {
  if (mesh.dp * mesh.tp == 1) return false;
  return std::ranges::any_of(plan.tensors(), [](const Tensor& tensor) {
    return tensor.role == TensorRole::kWeight && has_axis(tensor, axis::kExperts);
  });
}

Plan expert_pass(const Plan& plan, const Mesh& mesh) {
  const bool is_dispatched = mesh.dp > 1 || mesh.ep > 1;
  if (is_dispatched && has_shuffling(plan)) return expert_flows_pass(plan, mesh);
  check_expert_comm(mesh, /*is_fused=*/true);
  return ExpertPass(plan, mesh).run();
}

}  // namespace orrery
