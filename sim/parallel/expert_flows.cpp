#include "sim/parallel/expert_flows.h"

#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/kernel_spec.h"
#include "sim/parallel/dispatch_combine.h"
#include "sim/parallel/flow_writer.h"
#include "sim/parallel/routed_layer.h"
#include "sim/parallel/token_chunks.h"
#include "sim/parallel/token_exchange.h"

namespace orrery {
namespace {

// What is added to a layer is named as its other ops are: "layers.3." and a name of its own.
std::string prefix_of(const Op& op) { return op.name.substr(0, op.name.rfind('.') + 1); }

class FlowsPass {
 public:
  FlowsPass(const Plan& plan, const Mesh& mesh)
      : source_(plan), mesh_(mesh), rewrite_(plan, 1), write_(rewrite_, mesh) {}

  Plan run() {
    const auto num_ops = static_cast<OpId>(source_.ops().size());
    for (OpId id = 0; id < num_ops; ++id) {
      const auto* kernel = std::get_if<KernelOp>(&op_at(id).body);
      if (kernel == nullptr || routed_role(*kernel) != RoutedRole::kSort) continue;
      layers_.push_back(routed_layer(source_, id));
      check_gather(layers_.back());
      const auto& gather = std::get<KernelOp>(op_at(layers_.back().gather).body);
      chunks_.push_back(token_chunks(mesh_, *kernel, gather));
    }
    copy_tensors();
    std::size_t next = 0;
    for (OpId id = 0; id < num_ops; ++id) {
      if (next == layers_.size() || id != layers_[next].shuffle) {
        copy_other(id);
        continue;
      }
      id = copy_layer(layers_[next], chunks_[next]);
      ++next;
    }
    return rewrite_.finish();
  }

 private:
  [[nodiscard]] const Op& op_at(OpId id) const {
    return source_.ops()[static_cast<std::size_t>(id)];
  }

  // Rows are sent in the order of their experts, so they are gathered before.
  void check_gather(const RoutedLayer& layer) const {
    if (!layer.gathers_in_gemm || mesh_.dp == 1) return;
    throw std::invalid_argument("op \"" + op_at(layer.gather).name +
                                "\" reads rows of tokens that lie on other ranks, expected no "
                                "fuse_gather with dp " +
                                std::to_string(mesh_.dp));
  }

  [[nodiscard]] bool gathers_tokens() const {
    return mesh_.dp > 1 && mesh_.expert_comm == ExpertComm::kTokens;
  }

  // Of which layer a tensor is, and whether of the tokens of the rank that sends them.
  struct Owner {
    std::size_t layer = 0;
    bool is_sender = false;
  };

  // What a rank's shuffle and gather write is of its range of experts and its own tokens; what the
  // experts' ops write, of its block and the tokens of all ranks. Where tokens are gathered all is
  // of the latter kind.
  void copy_tensors() {
    std::map<TensorId, Owner> owners;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const auto own = [&](OpId id, bool is_sender) {
        for (const TensorId written : op_at(id).writes) owners[written] = {i, is_sender};
      };
      own(layers_[i].shuffle, !gathers_tokens());
      own(layers_[i].gather, !gathers_tokens());
      for (const OpId id : layers_[i].experts) own(id, false);
    }
    TensorId id = 0;
    rewrite_.copy_tensors([&](Tensor& tensor) {
      const auto found = owners.find(id++);
      for (Axis& entry : tensor.axes) {
        entry = found == owners.end() ? expert_axis(rewrite_, entry, mesh_)
                                      : owned_axis(entry, found->second, 0);
      }
    });
    for (const auto& [written, owner] : owners) add_for_chunks(written, owner);
  }

  Axis owned_axis(const Axis& entry, const Owner& owner, std::size_t chunk_idx) {
    const TokenChunk& chunk = chunks_[owner.layer][chunk_idx];
    if (entry.name == axis::kRoutedRows) {
      const std::int64_t of_block = chunk.grid.block_bound() * mesh_.dp;
      return {entry.name, owner.is_sender ? chunk.grid.range_bound() : of_block, entry.split};
    }
    if (entry.name == axis::kExperts && owner.is_sender) {
      const std::int64_t all = entry.size + mesh_.num_redundant_experts;
      return rewrite_.divided({entry.name, all, entry.split}, expert_range(mesh_));
    }
    if (entry.name == axis::kTokens && gathers_tokens()) {
      return {entry.name, entry.size * mesh_.dp};
    }
    if (entry.name == axis::kTokens && !chunk.is_whole()) return {entry.name, chunk.count};
    return expert_axis(rewrite_, entry, mesh_);
  }

  // The first chunk has the layer's tensor itself.
  void add_for_chunks(TensorId written, const Owner& owner) {
    std::vector<TokenChunk>& chunks = chunks_[owner.layer];
    chunks.front().tensors[written] = written;
    for (std::size_t i = 1; i < chunks.size(); ++i) {
      std::vector<Axis> axes = source_.tensors()[static_cast<std::size_t>(written)].axes;
      for (Axis& entry : axes) entry = owned_axis(entry, owner, i);
      chunks[i].tensors[written] = rewrite_.add_tensor_like(written, chunks[i].suffix, axes);
    }
  }

  void copy_other(OpId id) {
    rewrite_.begin(id);
    Op op = sharded(op_at(id), mesh_);
    if (is_reduced_already(op)) {
      // A slice of the sum's columns is on each rank of the group.
      if (!is_gathered_) {
        write_.inside(
            "scatter.columns", CollectiveKind::kAllGather,
            [&](int) { return write_.whole(slice_); }, {slice_}, {output_}, 0);
      }
      is_gathered_ = true;
      rewrite_.drop(id);
      return;
    }
    output_ = -1;
    rewrite_.copy(id, std::move(op));
  }
  [[nodiscard]] bool is_reduced_already(const Op& op) const {
    const auto* comm = std::get_if<CommOp>(&op.body);
    return output_ >= 0 && comm != nullptr && comm->kind == CollectiveKind::kAllReduce &&
           op.reads == TensorViews{output_};
  }

  // Returns the layer's last op.
  OpId copy_layer(const RoutedLayer& layer, const std::vector<TokenChunk>& chunks) {
    const ExpertGrid& grid = chunks.front().grid;
    const Op& shuffle = op_at(layer.shuffle);
    const std::string prefix = prefix_of(shuffle);
    const auto& gather = std::get<KernelOp>(op_at(layer.gather).body);
    write_.begin_layer(prefix, rewrite_.group(shuffle.ranks),
                       dim(gather.dims, layer.gathers_in_gemm ? "k" : "hidden"));
    if (gathers_tokens()) {
      TokenExchange(source_, mesh_, rewrite_, write_, layer, grid).run();
      return layer.scatter;
    }
    OpId shuffle_op = -1;
    for (const TokenChunk& chunk : chunks) shuffle_op = place_shuffle(layer.shuffle, chunk);
    if (mesh_.dp == 1) {
      select(layer, grid);
    } else {
      DispatchCombine layer_dispatch(source_, mesh_, rewrite_, write_, layer, chunks);
      layer_dispatch.run(shuffle_op, prefix);
      output_ = layer_dispatch.output();
      slice_ = layer_dispatch.output_slice();
      is_gathered_ = false;
    }
    return layer.scatter >= 0 ? layer.scatter : layer.experts.back();
  }

  // Of the range's experts, less redundant copies: the router does not tell them apart.
  OpId place_shuffle(OpId id, const TokenChunk& chunk) {
    Op op = op_of_chunk(source_, id, chunk);
    for (Dim& entry : std::get<KernelOp>(op.body).dims) {
      if (entry.axis == axis::kExperts) entry.size = ceil_div(entry.size, mesh_.ep / mesh_.dp);
    }
    const auto none = [](int) { return std::vector<FlowWriter::Size>(); };
    if (chunk.first == 0) return write_.place(id, op, none).front();
    const OpId placed = write_.place(op, none).front();
    rewrite_.drop(id);
    return placed;
  }

  // One data-parallel rank: its tokens are all there are, and each rank takes its experts' rows.
  void select(const RoutedLayer& layer, const ExpertGrid& grid) {
    const auto sent = [&](int rank) { return sent_sizes(grid, rank); };
    const auto computed = [&](int rank) { return computed_sizes(grid, rank); };
    for (const OpId id : layer.shared) copy_other(id);
    if (layer.gathers_in_gemm) {
      write_.place(layer.gather, sharded(op_at(layer.gather), mesh_), computed);
    } else {
      write_.place(layer.gather, op_at(layer.gather), sent);
    }
    for (const OpId id : layer.experts) write_.place(id, sharded(op_at(id), mesh_), computed);
    if (layer.scatter >= 0) write_.place(layer.scatter, op_at(layer.scatter), sent);
  }

  const Plan& source_;
  const Mesh& mesh_;
  Rewrite rewrite_;
  FlowWriter write_;
  std::vector<RoutedLayer> layers_;
  std::vector<std::vector<TokenChunk>> chunks_;  // by layer
  // With dedup: the output that the source reduces next, of which ranks have slices; else -1.
  TensorId output_ = -1;
  TensorId slice_ = -1;
  bool is_gathered_ = false;
};

}  // namespace

namespace {

void check_copies(const Mesh& mesh) {
  const auto fail = [](const std::string& beside, const std::string& expected) {
    throw std::invalid_argument("expert_comm is copies " + beside + "; expected " + expected +
                                ", or expert_comm eager");
  };
  if (mesh.dp == 1) fail("with dp 1, where no rows travel", "dp of at least 2");
  if (mesh.two_batch_overlap) {
    fail("beside two_batch_overlap, whose halves hide each other's collectives",
         "two_batch_overlap false");
  }
  if (mesh.ffn_instances > 0) {
    fail("beside ffn_instances, whose rows go one way at a time", "no ffn_instances");
  }
  if (mesh.sp || mesh.cp > 1 || mesh.dp_rows == DpRows::kBalanced) {
    fail("with sp, cp or dp_rows balanced, which split tokens otherwise",
         "sp false, cp 1 and dp_rows own");
  }
}

}  // namespace

void check_expert_comm(const Mesh& mesh, bool is_fused) {
  const ExpertComm comm = mesh.expert_comm;
  if (comm == ExpertComm::kCopies && !is_fused) check_copies(mesh);
  if (mesh.dp == 1) return;
  const std::string name(kExpertCommNames[static_cast<std::size_t>(comm)]);
  const bool is_of_fused = comm == ExpertComm::kAllToAll || comm == ExpertComm::kAllGather ||
                           comm == ExpertComm::kDeepEp;
  if (is_fused && comm == ExpertComm::kDeepEp && mesh.ep != mesh.dp * mesh.tp) {
    throw std::invalid_argument("expert_comm is deepep with ep " + std::to_string(mesh.ep) +
                                ", expected dp * tp = " + std::to_string(mesh.dp * mesh.tp));
  }
  if (is_fused && !is_of_fused) {
    throw std::invalid_argument("expert_comm is " + name +
                                ", which is of design shuffling; expected all_to_all, "
                                "all_gather or deepep for a fused moe op");
  }
  if (is_fused) return;
  if (is_of_fused) {
    throw std::invalid_argument("expert_comm is " + name +
                                ", which dispatches rows of a fused moe op; expected eager, graph, "
                                "tokens, dedup, dedup_graph or copies for design shuffling");
  }
  if (mesh.ep % mesh.dp != 0) {
    throw std::invalid_argument("ep is " + std::to_string(mesh.ep) + " with dp " +
                                std::to_string(mesh.dp) +
                                ", expected a multiple of dp for design shuffling: the experts of "
                                "a data-parallel group lie on all of its ranks");
  }
  if (comm == ExpertComm::kEager || comm == ExpertComm::kGraph || comm == ExpertComm::kTokens ||
      comm == ExpertComm::kCopies) {
    return;
  }
  if (mesh.shared_expert == SharedExpert::kReplicated) {
    throw std::invalid_argument("expert_comm is " + name +
                                " with a replicated shared expert, whose result it would add up "
                                "by slices of columns; expected shared_expert split, or "
                                "expert_comm eager or graph");
  }
  if (mesh.tp > 1 && mesh.ep == mesh.dp && !mesh.sp) return;
  throw std::invalid_argument("expert_comm is " + name + " with tp " + std::to_string(mesh.tp) +
                              " and ep " + std::to_string(mesh.ep) + (mesh.sp ? " and sp" : "") +
                              ", expected two levels: tp of at least 2 inside a node, ep = dp = " +
                              std::to_string(mesh.dp) + " across nodes, no sp");
}

Plan expert_flows_pass(const Plan& plan, const Mesh& mesh) {
  check_moe_chunks(mesh, MoeDesign::kShuffling);
  check_expert_comm(mesh, /*is_fused=*/false);
  return FlowsPass(plan, mesh).run();
}

}  // namespace orrery
