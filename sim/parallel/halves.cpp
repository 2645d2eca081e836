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

void require_like_keys(const std::vector<Batch>& parts) {
  const auto keys = [](const Batch& part) {
    std::int64_t sum = 0;
    for (const PrefillChunk& chunk : part.prefill) sum += chunk.context + chunk.query;
    return sum;
  };
  const auto [least, most] = std::ranges::minmax(parts, {}, keys);
  if (keys(least) == keys(most)) return;
  throw std::invalid_argument(
      "prompts in halves of " + std::to_string(keys(least)) + " to " + std::to_string(keys(most)) +
      " keys are not executed with latent attention (MLA), whose plan gathers as many for each; "
      "expected an even number of equal prompts on each rank, or two_batch_overlap false");
}

StepShape halves_shape(const Batch& batch, const std::vector<Batch>& parts) {
  const std::int64_t ways = std::ssize(parts);
  std::int64_t prompt_rows = 0;
  std::int64_t ending = 0;
  std::int64_t decodes = 0;
  Batch pieces;
  for (const Batch& part : parts) {
    prompt_rows = std::max(prompt_rows, num_tokens(part) - part.num_decodes);
    ending = std::max(ending, num_sampled(part) - part.num_decodes);
    decodes = std::max(decodes, part.num_decodes);
    pieces.prefill.insert(pieces.prefill.end(), part.prefill.begin(), part.prefill.end());
  }
  StepShape shape = pieces.prefill.empty() ? StepShape{} : step_shape(pieces);
  shape.rank_rows = prompt_rows + decodes;
  shape.tokens = ways * shape.rank_rows;
  shape.seqs = ways * (ending + decodes);
  shape.num_decodes = shape.decode_rows = ways * decodes;
  shape.decode_context = mean_context(batch);
  shape.num_micro_batches = kNumHalves;
  if (pieces.prefill.empty()) return shape;
  const std::int64_t own = ceil_div(shape.prefill_batch, ways);
  shape.prefill_batch = ways * own;
  shape.prefill_query = ceil_div(prompt_rows, own);
  shape.prefill_tokens = ways * prompt_rows;
  return shape;
}

}  // namespace

Plan executed_plan(const ModelConfig& model, const Batch& batch, const LoweringOptions& options,
                   const Mesh& mesh) {
  const bool is_halved = mesh.two_batch_overlap && dealt_shape(batch, mesh).num_micro_batches > 1;
  if (!is_halved) return parallelize(lower(model, batch, options), mesh);
  const std::vector<Batch> parts = parts_of(batch, mesh.dp);
  if (model.kv_lora_rank > 0) require_like_keys(parts);
  return step_plan(model, halves_shape(batch, parts), options, mesh);
}

}  // namespace orrery
