#include "sim/parallel/halves.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/parallel/rank_rows.h"
#include "sim/parallel/rewrite.h"
#include "sim/plan/halves.h"

namespace orrery {
namespace {

std::vector<Batch> parts_of(const Batch& batch, int dp) {
  std::vector<Batch> parts(static_cast<std::size_t>(dp) * kNumHalves);
  std::vector<std::int64_t> lengths(batch.prefill.size());
  std::ranges::transform(batch.prefill, lengths.begin(), &PrefillChunk::query);
  for (const ChunkPiece& piece : halved_chunks(lengths, dp)) {
    const PrefillChunk& whole = batch.prefill[piece.chunk];
    const bool is_last = piece.first + piece.count == whole.query;
    parts[static_cast<std::size_t>(piece.part)].prefill.push_back(
        {.query = piece.count,
         .context = whole.context + piece.first,
         .produces_token = whole.produces_token && is_last});
  }
  for (const int part : halved_decodes(batch.num_decodes, dp)) {
    ++parts[static_cast<std::size_t>(part)].num_decodes;
  }
  return parts;
}

// Both halves of each rank together.
std::vector<Batch> ranks_of(const std::vector<Batch>& halves) {
  std::vector<Batch> ranks(halves.size() / kNumHalves);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    Batch& rank = ranks[i / kNumHalves];
    rank.prefill.insert(rank.prefill.end(), halves[i].prefill.begin(), halves[i].prefill.end());
    rank.num_decodes += halves[i].num_decodes;
  }
  return ranks;
}

// What a plan has as many of on each part: new tokens of prompts, and their keys.
std::int64_t prompt_rows_of(const Batch& part) { return num_tokens(part) - part.num_decodes; }
std::int64_t prompt_keys_of(const Batch& part) { return num_keys({.prefill = part.prefill}); }
bool are_alike(const std::vector<Batch>& parts) {
  return std::ranges::all_of(parts, [&](const Batch& part) {
    return prompt_rows_of(part) == prompt_rows_of(parts.front()) &&
           prompt_keys_of(part) == prompt_keys_of(parts.front());
  });
}

// As full as the fullest.
StepShape shape_of(const Batch& batch, const std::vector<Batch>& parts, int num_micro_batches) {
  const std::int64_t ways = std::ssize(parts);
  std::int64_t prompt_rows = 0;
  std::int64_t ending = 0;
  std::int64_t decodes = 0;
  std::int64_t keys = 0;  // of prompts: new tokens and cached ones
  Batch pieces;
  for (const Batch& part : parts) {
    prompt_rows = std::max(prompt_rows, prompt_rows_of(part));
    ending = std::max(ending, num_sampled(part) - part.num_decodes);
    decodes = std::max(decodes, part.num_decodes);
    keys = std::max(keys, prompt_keys_of(part));
    pieces.prefill.insert(pieces.prefill.end(), part.prefill.begin(), part.prefill.end());
  }
  StepShape shape = pieces.prefill.empty() ? StepShape{} : step_shape(pieces);
  shape.rank_rows = prompt_rows + decodes;
  shape.tokens = ways * shape.rank_rows;
  shape.seqs = ways * (ending + decodes);
  shape.num_decodes = shape.decode_rows = ways * decodes;
  shape.decode_context = mean_context(batch);
  shape.num_micro_batches = num_micro_batches;
  if (pieces.prefill.empty()) return shape;
  const std::int64_t own = ceil_div(shape.prefill_batch, ways);
  shape.prefill_batch = ways * own;
  shape.prefill_query = ceil_div(prompt_rows, own);
  shape.prefill_tokens = ways * prompt_rows;
  // Latents are gathered for as many keys on each.
  shape.prefill_cached = ways * (keys - prompt_rows);
  return shape;
}

// Of ranks that have even parts of the step's tokens instead of as many rows as the fullest. Rows
// of prompts, and of their keys, are split as those are: rounded down, their shares, which are
// rounded up, are those of the fullest rank.
StepShape with_even_rows(StepShape shape, std::int64_t tokens) {
  const std::int64_t fullest = shape.tokens;  // times the ranks
  const std::int64_t keys = (shape.prefill_tokens + shape.prefill_cached) * tokens / fullest;
  shape.tokens = tokens;
  shape.prefill_tokens = shape.prefill_tokens * tokens / fullest;
  shape.prefill_cached = keys - shape.prefill_tokens;
  return shape;
}

}  // namespace

Plan executed_plan(const ModelConfig& model, const Batch& batch, const LoweringOptions& options,
                   const Mesh& mesh) {
  const bool is_halved = mesh.two_batch_overlap && dealt_shape(batch, mesh).num_micro_batches > 1;
  const bool is_dealt =
      is_halved || (mesh.dp > 1 && mesh.num_micro_batches == 1 && mesh.ffn_instances == 0);
  if (!is_dealt) return parallelize(lower(model, batch, options), mesh);
  const std::vector<Batch> halves = parts_of(batch, mesh.dp);
  if (is_halved) return step_plan(model, shape_of(batch, halves, kNumHalves), options, mesh);
  const std::vector<Batch> ranks = ranks_of(halves);
  if (are_alike(ranks)) return parallelize(lower(model, batch, options), mesh);
  StepShape shape = shape_of(batch, ranks, 1);
  if (mesh.dp_rows == DpRows::kBalanced) shape = with_even_rows(shape, num_tokens(batch));
  set_padding(shape, mesh, num_tokens(batch));
  return step_plan(model, shape, options, mesh);
}

}  // namespace orrery
