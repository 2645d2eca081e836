#include "sim/parallel/halves.h"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sim/parallel/rank_rows.h"
#include "sim/parallel/rewrite.h"
#include "sim/plan/halves.h"

namespace orrery {
namespace {

// Of each data-parallel rank, or of both halves of each: `num` is 1 or kNumHalves. Of a prompt that
// goes to both halves each has a part.
std::vector<Batch> parts_of(const Batch& batch, int dp, int num) {
  const int merged = kNumHalves / num;  // halves that a part is of
  std::vector<Batch> parts(static_cast<std::size_t>(dp) * num);
  std::vector<std::size_t> last(parts.size(), batch.prefill.size());  // chunk of each part
  std::vector<std::int64_t> lengths(batch.prefill.size());
  std::ranges::transform(batch.prefill, lengths.begin(), &PrefillChunk::query);
  for (const ChunkPiece& piece : halved_chunks(lengths, dp)) {
    const PrefillChunk& whole = batch.prefill[piece.chunk];
    const auto part = static_cast<std::size_t>(piece.part / merged);
    if (std::exchange(last[part], piece.chunk) == piece.chunk) {
      PrefillChunk& begun = parts[part].prefill.back();
      begun.query += piece.count;
      begun.produces_token = whole.produces_token;
      continue;
    }
    const bool is_last = piece.first + piece.count == whole.query;
    parts[part].prefill.push_back({.query = piece.count,
                                   .context = whole.context + piece.first,
                                   .produces_token = whole.produces_token && is_last});
  }
  for (const int half : halved_decodes(batch.num_decodes, dp)) {
    ++parts[static_cast<std::size_t>(half / merged)].num_decodes;
  }
  return parts;
}

// What a plan has as many of on each part: new tokens of prompts, their keys, and both together.
std::int64_t prompt_rows_of(const Batch& part) { return num_tokens(part) - part.num_decodes; }
std::int64_t prompt_keys_of(const Batch& part) { return num_keys({.prefill = part.prefill}); }
double attention_of(std::span<const PrefillChunk> prompts) {
  double pairs = 0;
  for (const PrefillChunk& chunk : prompts) {
    const auto query = static_cast<double>(chunk.query);
    pairs += query * (static_cast<double>(chunk.context) + query / 2);
  }
  return pairs;
}
bool are_alike(const std::vector<Batch>& parts) {
  const double pairs = attention_of(parts.front().prefill);
  return std::ranges::all_of(parts, [&](const Batch& part) {
    return prompt_rows_of(part) == prompt_rows_of(parts.front()) &&
           prompt_keys_of(part) == prompt_keys_of(parts.front()) &&
           attention_of(part.prefill) == pairs;
  });
}

// Of the rank whose attention over prompts takes longest, which the others wait for. A rank has
// `num` parts that follow each other.
std::vector<PrefillChunk> slowest_prompts(const std::vector<Batch>& parts, int num) {
  std::vector<PrefillChunk> slowest;
  for (auto rank = parts.begin(); rank != parts.end(); rank += num) {
    std::vector<PrefillChunk> own;
    for (auto part = rank; part != rank + num; ++part) {
      own.insert(own.end(), part->prefill.begin(), part->prefill.end());
    }
    if (attention_of(own) > attention_of(slowest)) slowest = std::move(own);
  }
  return slowest;
}

// As full as the fullest, with the attention of the slowest rank.
StepShape shape_of(const Batch& batch, const std::vector<Batch>& parts, int num_micro_batches) {
  const std::int64_t ways = std::ssize(parts);
  std::int64_t prompt_rows = 0;
  std::int64_t ending = 0;
  std::int64_t decodes = 0;
  std::int64_t keys = 0;  // of prompts: new tokens and cached ones
  const Batch pieces{.prefill = slowest_prompts(parts, num_micro_batches)};
  for (const Batch& part : parts) {
    prompt_rows = std::max(prompt_rows, prompt_rows_of(part));
    ending = std::max(ending, num_sampled(part) - part.num_decodes);
    decodes = std::max(decodes, part.num_decodes);
    keys = std::max(keys, prompt_keys_of(part));
  }
  StepShape shape = pieces.prefill.empty() ? StepShape{} : step_shape(pieces);
  shape.rank_rows = prompt_rows + decodes;
  shape.tokens = ways * shape.rank_rows;
  shape.seqs = ways * (ending + decodes);
  shape.num_decodes = shape.decode_rows = ways * decodes;
  shape.decode_context = mean_context(batch);
  shape.num_micro_batches = num_micro_batches;
  if (pieces.prefill.empty()) return shape;
  const std::int64_t own = ceil_div(shape.prefill_batch, std::int64_t{num_micro_batches});
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
  if (is_halved) {
    const std::vector<Batch> halves = parts_of(batch, mesh.dp, kNumHalves);
    return step_plan(model, shape_of(batch, halves, kNumHalves), options, mesh);
  }
  const std::vector<Batch> ranks = parts_of(batch, mesh.dp, 1);
  if (are_alike(ranks)) return parallelize(lower(model, batch, options), mesh);
  StepShape shape = shape_of(batch, ranks, 1);
  if (mesh.dp_rows == DpRows::kBalanced) shape = with_even_rows(shape, num_tokens(batch));
  set_padding(shape, mesh, num_tokens(batch));
  return step_plan(model, shape, options, mesh);
}

}  // namespace orrery
