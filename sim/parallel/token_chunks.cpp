#include "sim/parallel/token_chunks.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/kernel_spec.h"
#include "sim/parallel/rank_rows.h"

namespace orrery {
namespace {

// Whether the first axis of the tensor is of the rank's tokens.
bool is_of_tokens(const Tensor& tensor) {
  return tensor.role != TensorRole::kWeight && !tensor.axes.empty() &&
         tensor.axes.front().name == axis::kTokens;
}

}  // namespace

std::vector<TokenChunk> token_chunks(const Mesh& mesh, const KernelOp& shuffle,
                                     const KernelOp& gather) {
  const double routed = routed_share(shuffle, gather);
  const std::int64_t tokens = dim(shuffle.dims, "tokens");
  const std::int64_t num_chunks = std::clamp<std::int64_t>(mesh.moe_chunks, 1, tokens);
  const auto begin = [&](std::int64_t i) { return tokens * i / num_chunks; };
  std::vector<TokenChunk> chunks;
  for (std::int64_t i = 0; i < num_chunks; ++i) {
    const std::int64_t count = begin(i + 1) - begin(i);
    chunks.push_back({.first = begin(i),
                      .count = count,
                      .grid = ExpertGrid(mesh, dim(shuffle.dims, "experts_total"),
                                         dim(shuffle.dims, "topk"), count, routed),
                      .suffix = num_chunks > 1 ? ".chunk" + std::to_string(i) : "",
                      .tensors = {}});
  }
  return chunks;
}

Op op_of_chunk(const Plan& source, OpId id, const TokenChunk& chunk) {
  Op op = source.ops()[static_cast<std::size_t>(id)];
  if (chunk.is_whole()) return op;
  op.name += chunk.suffix;
  for (Dim& entry : std::get<KernelOp>(op.body).dims) {
    if (entry.axis == axis::kTokens) entry.size = chunk.count;
  }
  for (auto* views : {&op.reads, &op.writes}) {
    for (TensorView& view : *views) {
      const auto own = chunk.tensors.find(view.tensor);
      if (own != chunk.tensors.end()) {
        view.tensor = own->second;
      } else if (is_of_tokens(source.tensors()[static_cast<std::size_t>(view.tensor)])) {
        view = TensorView::of_rows(view, chunk.first, chunk.count);
      }
    }
  }
  return op;
}

void check_moe_chunks(const Mesh& mesh, MoeDesign design) {
  if (mesh.moe_chunks == 1) return;
  const auto fail = [&](const std::string& beside, const std::string& expected) {
    throw std::invalid_argument("moe chunks is " + std::to_string(mesh.moe_chunks) + beside +
                                "; expected " + expected + ", or chunks 1");
  };
  if (mesh.moe_chunks < 1 || mesh.moe_chunks > kMostMoeChunks) {
    throw std::invalid_argument("moe chunks is " + std::to_string(mesh.moe_chunks) +
                                ", expected 1 to " + std::to_string(kMostMoeChunks));
  }
  if (design != MoeDesign::kShuffling) {
    fail(" with design " + std::string(to_text(design)),
         "design shuffling, whose rows are dispatched by collectives of their own");
  }
  if (mesh.dp == 1) {
    fail(" with dp 1, where no rows travel beside which experts could compute",
         "dp of at least 2, and ep a multiple of it");
  }
  if (mesh.expert_comm != ExpertComm::kEager && mesh.expert_comm != ExpertComm::kGraph &&
      mesh.expert_comm != ExpertComm::kCopies) {
    fail(" with expert_comm " +
             std::string(kExpertCommNames[static_cast<std::size_t>(mesh.expert_comm)]),
         "expert_comm eager, graph or copies");
  }
  if (mesh.two_batch_overlap) {
    fail(" beside two_batch_overlap, whose halves hide each other's collectives already",
         "two_batch_overlap false");
  }
  if (mesh.ffn_instances > 0) {
    fail(" beside ffn_instances, whose micro-batches take turns already", "no ffn_instances");
  }
  if (mesh.sp || mesh.cp > 1 || mesh.dp_rows == DpRows::kBalanced) {
    fail(" with sp, cp or dp_rows balanced, which split tokens otherwise",
         "sp false, cp 1 and dp_rows own");
  }
}

}  // namespace orrery
