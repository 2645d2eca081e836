#include "sim/parallel/token_exchange.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "kernels/kernel_spec.h"
#include "sim/parallel/dispatch_combine.h"
#include "sim/parallel/expert_flows.h"

namespace orrery {

TokenExchange::TokenExchange(const Plan& source, const Mesh& mesh, Rewrite& rewrite,
                             FlowWriter& write, const RoutedLayer& layer, const ExpertGrid& grid)
    : source_(source),
      mesh_(mesh),
      rewrite_(rewrite),
      write_(write),
      layer_(layer),
      grid_(grid),
      stream_(layer.shared.empty() ? 0 : kCollectiveStream),
      scores_(op_at(layer.shuffle).reads.front()),
      tokens_(op_at(layer.gather).reads.front()),
      output_(op_at(layer.scatter < 0 ? layer.shuffle : layer.scatter).writes.front()) {
  if (layer.scatter >= 0) return;
  throw std::invalid_argument("op \"" + op_at(layer.experts.back()).name +
                              "\" adds rows to tokens that lie on other ranks, expected no "
                              "fuse_scatter_add with dp " +
                              std::to_string(mesh.dp));
}

void TokenExchange::run() {
  const std::size_t last = layer_.shared.size();
  const std::size_t part = mesh_.split_shared_expert && last > 0 ? last - 1 : last;
  rewrite_.begin(layer_.shuffle);
  gather_tokens();
  place_shared(0, part);
  compute();
  TensorId base = -1;
  for (const TensorId read : op_at(layer_.scatter).reads) {
    if (source_.tensors()[static_cast<std::size_t>(read)].axes ==
        source_.tensors()[static_cast<std::size_t>(output_)].axes) {
      base = read;
    }
  }
  const auto whole = [&](int) { return write_.whole(all_outputs_); };
  routed_ = base < 0 ? output_
                     : rewrite_.add_tensor_like(output_, ".routed", rewrite_.tensor(output_).axes);
  write_.across("tokens.reduce_scatter", CollectiveKind::kReduceScatter, whole, {all_outputs_},
                {routed_}, stream_);
  place_shared(part, last);
  if (base >= 0) collect(base);
}

TensorId TokenExchange::add_of_all(TensorId id) {
  std::vector<Axis> axes = rewrite_.tensor(id).axes;
  for (Axis& entry : axes) {
    if (entry.name == axis::kTokens) entry = {entry.name, entry.size * mesh_.dp};
  }
  return rewrite_.add_tensor_like(id, ".all", axes);
}

void TokenExchange::gather_tokens() {
  all_scores_ = add_of_all(scores_);
  all_tokens_ = add_of_all(tokens_);
  const auto bytes = [&](int) { return write_.whole(tokens_) + write_.whole(scores_); };
  write_.across("tokens.all_gather", CollectiveKind::kAllGather, bytes, {tokens_, scores_},
                {all_tokens_, all_scores_}, stream_);
}

void TokenExchange::place_shared(std::size_t first, std::size_t last) {
  for (std::size_t i = first; i < last; ++i) {
    const OpId id = layer_.shared[i];
    rewrite_.begin(id);
    rewrite_.copy(id, sharded(op_at(id), mesh_));
  }
}

Op TokenExchange::on_all_tokens(OpId id) const {
  Op op = sharded(op_at(id), mesh_);
  for (Dim& entry : std::get<KernelOp>(op.body).dims) {
    if (entry.axis == axis::kTokens) entry.size *= mesh_.dp;
  }
  std::ranges::replace(op.reads, TensorView(scores_), TensorView(all_scores_));
  std::ranges::replace(op.reads, TensorView(tokens_), TensorView(all_tokens_));
  return op;
}

void TokenExchange::compute() {
  const auto sizes = [&](int rank) { return computed_sizes(grid_, rank); };
  const auto none = [](int) { return std::vector<FlowWriter::Size>(); };
  write_.place(layer_.shuffle, on_all_tokens(layer_.shuffle), none);
  write_.place(layer_.gather, on_all_tokens(layer_.gather), sizes);
  for (const OpId id : layer_.experts) write_.place(id, sharded(op_at(id), mesh_), sizes);
  Op scatter = on_all_tokens(layer_.scatter);
  const auto& axes = source_.tensors()[static_cast<std::size_t>(output_)].axes;
  std::erase_if(scatter.reads, [&](const TensorView& read) {
    return source_.tensors()[static_cast<std::size_t>(read)].axes == axes;
  });
  auto& dims = std::get<KernelOp>(scatter.body).dims;
  std::ranges::find(dims, "base", &Dim::name)->size = 0;
  all_outputs_ = add_of_all(output_);
  scatter.writes = {all_outputs_};
  write_.place(layer_.scatter, scatter, sizes);
}

// The shared expert's result is of the rank's own tokens, so it is added behind the reduction.
void TokenExchange::collect(TensorId base) {
  const Op& scatter = op_at(layer_.scatter);
  const auto& dims = std::get<KernelOp>(scatter.body).dims;
  rewrite_.insert(
      {.name = scatter.name + ".shared_add",
       .body = KernelOp{.kernel = std::string(residual_sum().name),
                        .dtype = DType::kBf16,
                        .dims = {{"tokens", dim(dims, "tokens"), std::string(axis::kTokens)},
                                 {"hidden", dim(dims, "hidden"), std::string(axis::kHidden)}}},
       .ranks = rewrite_.group(scatter.ranks),
       .stream = scatter.stream,
       .reads = {routed_, base},
       .writes = {output_},
       .after = {}});
}

}  // namespace orrery
