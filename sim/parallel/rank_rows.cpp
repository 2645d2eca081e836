#include "sim/parallel/rank_rows.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/kernel_spec.h"
#include "sim/parallel/rewrite.h"

namespace orrery {
namespace {

// Chunks of the rank with most prompt tokens; of equals the first.
std::vector<PrefillChunk> fullest_share(const std::vector<PrefillChunk>& chunks, int num_ranks) {
  struct Share {
    std::int64_t tokens = 0;
    std::vector<PrefillChunk> chunks;
  };
  std::vector<Share> shares(std::min(static_cast<std::size_t>(num_ranks), chunks.size()));
  for (const PrefillChunk& chunk : chunks) {
    Share& share = *std::ranges::min_element(shares, {}, &Share::tokens);
    share.tokens += chunk.query;
    share.chunks.push_back(chunk);
  }
  return std::move(std::ranges::max_element(shares, {}, &Share::tokens)->chunks);
}

// One of `parts` even parts of equal chunks: as many tokens each, and the same causal work.
StepShape part_of(const StepShape& whole, int parts) {
  if (parts == 1) return whole;
  StepShape part = whole;
  part.prefill_batch =
      std::max<std::int64_t>(1, std::llround(static_cast<double>(whole.prefill_batch) / parts));
  part.prefill_query =
      ceil_div(whole.prefill_batch * whole.prefill_query, part.prefill_batch * parts);
  // Tokens attend context + query / 2 others on average.
  part.prefill_context = std::max<std::int64_t>(
      0, whole.prefill_context + (whole.prefill_query - part.prefill_query) / 2);
  part.prefill_cached = ceil_div(whole.prefill_cached, parts);
  return part;
}

// Micro-batches of a step of which a rank has at most so many sequences. Two-batch overlap cuts a
// prompt that is alone, too: in each layer the first half writes its keys and values before the
// second attends to them.
int num_parts(const Mesh& mesh, std::int64_t sequences, bool has_prompt) {
  if (mesh.two_batch_overlap) return sequences > 1 || has_prompt ? 2 : 1;
  return static_cast<int>(std::min<std::int64_t>(mesh.num_micro_batches, sequences));
}

Mesh mesh_of(const StepShape& shape, Mesh mesh) {
  if (shape.num_micro_batches > 0) mesh.num_micro_batches = shape.num_micro_batches;
  return mesh;
}

}  // namespace

RankRows::RankRows(const Mesh& mesh, std::int64_t step_tokens, std::int64_t prefill_rows,
                   std::int64_t decode_rows)
    : ways(static_cast<std::int64_t>(mesh.dp) * mesh.num_micro_batches),
      num_micro_batches(mesh.num_micro_batches),
      tokens(step_tokens),
      rows(std::min(tokens, std::max(ceil_div(tokens, ways), prefill_rows + decode_rows))) {}

RankRows::RankRows(const Mesh& mesh, const StepShape& shape)
    : RankRows(mesh_of(shape, mesh), shape.tokens, 0, 0) {
  const std::int64_t own =
      ceil_div(shape.prefill_batch, ways) * shape.prefill_query + ceil_div(shape.decode_rows, ways);
  rows = std::min(tokens, shape.rank_rows > 0 ? shape.rank_rows : std::max(rows, own));
}

std::int64_t RankRows::of(std::string_view name, std::int64_t size) const {
  if (name == axis::kSeqs) return ceil_div(size, ways);
  if (name == axis::kRoutedTokens) return ceil_div(size, num_micro_batches);
  if ((name != axis::kTokens && name != axis::kRoutedRows) || tokens == 0) return size;
  return size == tokens ? rows : ceil_div(size * rows, tokens);
}

std::optional<std::int64_t> find_dim(const Dims& dims, std::string_view name,
                                     std::string_view axis) {
  for (const Dim& entry : dims) {
    if (entry.name == name) return entry.axis == axis ? std::optional(entry.size) : std::nullopt;
  }
  return std::nullopt;
}

double routed_share(const KernelOp& shuffle, const KernelOp& gather) {
  const double choices =
      static_cast<double>(dim(shuffle.dims, "tokens") * dim(shuffle.dims, "topk"));
  const std::int64_t rows = find_dim(gather.dims, "rows", axis::kRoutedRows).value_or(0);
  return rows == 0 || choices == 0 ? 1 : std::min(1.0, static_cast<double>(rows) / choices);
}

RowShares::RowShares(const Plan& plan, const RankRows& rank, const ExpertLoad& load) : rank_(rank) {
  const KernelOp* shuffle = nullptr;
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr) continue;
    if (shuffle == nullptr && routed_role(*kernel) == RoutedRole::kSort) shuffle = kernel;
    if (shuffle == nullptr || !find_dim(kernel->dims, "rows", axis::kRoutedRows)) continue;
    const std::int64_t experts = dim(shuffle->dims, "experts_total");
    const bool is_of_experts = std::ssize(load.shares) == experts;
    const auto routed =
        std::llround(static_cast<double>(rank_.rows) * routed_share(*shuffle, *kernel));
    active_ = expected_dims(is_of_experts ? load : ExpertLoad{}, experts,
                            dim(shuffle->dims, "topk"), std::max(routed, 1LL), 0, experts)
                  .active;
    return;
  }
}

std::int64_t RowShares::operator()(std::string_view name, std::int64_t size) const {
  return name == axis::kActiveExperts ? std::min(size, active_) : rank_.of(name, size);
}

StepShape dealt_shape(const Batch& batch, const Mesh& mesh) {
  StepShape shape = step_shape(batch);
  const bool has_prompt =
      std::ranges::any_of(batch.prefill, [](const PrefillChunk& chunk) { return chunk.query > 1; });
  shape.num_micro_batches = num_parts(mesh, ceil_div(num_sequences(batch), mesh.dp), has_prompt);
  const RankRows even(mesh, shape);
  if (even.ways == 1 || batch.prefill.empty()) return shape;
  const StepShape own = part_of(step_shape({.prefill = fullest_share(batch.prefill, mesh.dp)}),
                                shape.num_micro_batches);
  shape.prefill_batch = own.prefill_batch * even.ways;
  shape.prefill_query = own.prefill_query;
  shape.prefill_context = own.prefill_context;
  // Rows of axis `tokens` are split as the tokens of the step are.
  const RankRows rank(mesh, shape);
  const double scale = static_cast<double>(rank.tokens) / static_cast<double>(rank.rows);
  const std::int64_t of_prompts = rank.rows - ceil_div(shape.decode_rows, rank.ways);
  shape.prefill_tokens = std::llround(static_cast<double>(of_prompts) * scale);
  shape.prefill_cached = std::llround(static_cast<double>(own.prefill_cached) * scale);
  return shape;
}

void set_padding(StepShape& shape, const Mesh& mesh, std::int64_t tokens, std::int64_t all_rows) {
  shape.padding = 0;
  if (mesh.dp_rows == DpRows::kBalanced || mesh.cp > 1 || mesh.ffn_instances > 0 ||
      mesh.moe_gather == MoeGather::kRouted) {
    return;
  }
  const RankRows rank(mesh, shape);
  const std::int64_t rows = all_rows > 0 ? all_rows : rank.ways * rank.rows;
  const double share =
      static_cast<double>(tokens) / static_cast<double>(std::max<std::int64_t>(rows, 1));
  const std::int64_t routed = std::llround(static_cast<double>(shape.tokens) * share);
  shape.padding = shape.tokens - std::clamp<std::int64_t>(routed, 1, shape.tokens);
}

std::int64_t sampled_rows(std::int64_t padded, const Batch& batch) {
  return batch.samples_last ? ceil_div(padded, batch.decode_query) : padded;
}

StepShape rank_shape(const Batch& own, std::int64_t tokens, std::int64_t padded,
                     std::int64_t most_sequences, const Mesh& mesh) {
  const Batch idle{.num_decodes = 1, .decode_context = 1};
  const Batch& batch = num_sequences(own) > 0 ? own : idle;
  StepShape shape = step_shape(batch);
  // Where no rank has two sequences, more rows than ranks are those of a prompt.
  shape.num_micro_batches = num_parts(mesh, most_sequences, padded == 0 && tokens > mesh.dp);
  const std::int64_t own_rows = padded > 0 ? padded : shape.tokens;
  shape.rank_rows = ceil_div(own_rows, shape.num_micro_batches);
  const std::int64_t decode_rows = padded > 0 ? padded : batch.num_decodes * batch.decode_query;
  shape.tokens = std::max(tokens, shape.rank_rows);
  shape.seqs = (padded > 0 ? sampled_rows(padded, batch) : shape.seqs) * mesh.dp;
  shape.num_decodes = batch.num_decodes * mesh.dp;
  shape.decode_rows = decode_rows * mesh.dp;
  if (padded > 0) shape.rank_rows = 0;  // all have as many
  if (batch.prefill.empty()) return shape;
  const StepShape own_part =
      part_of(step_shape({.prefill = batch.prefill}), shape.num_micro_batches);
  const std::int64_t ways = std::int64_t{mesh.dp} * shape.num_micro_batches;
  shape.prefill_batch = own_part.prefill_batch * ways;
  shape.prefill_query = own_part.prefill_query;
  shape.prefill_context = own_part.prefill_context;
  // Rows of axis `tokens` are split as the tokens of the step are.
  const double scale = static_cast<double>(shape.tokens) / static_cast<double>(shape.rank_rows);
  const std::int64_t of_prompts = shape.rank_rows - ceil_div(shape.decode_rows, ways);
  shape.prefill_tokens = std::llround(static_cast<double>(of_prompts) * scale);
  shape.prefill_cached = std::llround(static_cast<double>(own_part.prefill_cached) * scale);
  return shape;
}

StepShape alike_shape(const Batch& rank, const Mesh& mesh, std::int64_t tokens) {
  StepShape shape = step_shape(rank);
  shape.rank_rows = shape.tokens;
  for (std::int64_t StepShape::* const of_all :
       {&StepShape::tokens, &StepShape::seqs, &StepShape::prefill_tokens, &StepShape::prefill_batch,
        &StepShape::prefill_cached, &StepShape::num_decodes, &StepShape::decode_rows}) {
    shape.*of_all *= std::int64_t{mesh.dp} * mesh.num_micro_batches;
  }
  if (tokens == 0) return shape;
  // Rows of axis `tokens` are split as the tokens of the step are: rounded down, their shares,
  // which are rounded up, are those of `rank`.
  const StepShape own = step_shape(rank);
  const auto of_all = [&](std::int64_t rows) { return rows * tokens / own.tokens; };
  shape.tokens = tokens;
  shape.prefill_tokens = of_all(own.prefill_tokens);
  shape.prefill_cached = of_all(own.prefill_tokens + own.prefill_cached) - shape.prefill_tokens;
  return shape;
}

Plan step_plan(const ModelConfig& model, const Batch& batch, const LoweringOptions& options,
               const Mesh& mesh) {
  return step_plan(model, dealt_shape(batch, mesh), options, mesh);
}

Plan step_plan(const ModelConfig& model, const StepShape& shape, const LoweringOptions& options,
               const Mesh& mesh) {
  return parallelize(lower(model, shape, options), mesh_of(shape, mesh),
                     RankRows(mesh, shape).rows);
}

}  // namespace orrery
