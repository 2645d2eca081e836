#include "kernels/execute/reference/context_part.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/attention/kv_gather/reference.h"
#include "kernels/execute/context_share.h"

namespace orrery::reference {
namespace {

const Tensor& tensor_of(const Plan& plan, TensorId id) {
  return plan.tensors()[static_cast<std::size_t>(id)];
}

// `sequence` of the step as the stretches of its rows that lie in one range each.
void add_stretches(const SequenceRows& sequence, const std::vector<AxisRange>& ranges,
                   std::vector<SequenceRows>& stretches) {
  for (const AxisRange& range : ranges) {
    const std::int64_t first = std::max(sequence.row, range.global);
    const std::int64_t last = std::min(sequence.row + sequence.query, range.global + range.count);
    if (first >= last) continue;
    SequenceRows stretch = sequence;
    stretch.row = range.local + first - range.global;
    stretch.query = last - first;
    stretches.push_back(stretch);
  }
}

}  // namespace

PartRows part_rows(const StepPart& part, const StepRows& rows, std::int64_t block_size) {
  PartRows result{.rows = rows,
                  .token_ids = std::vector<std::int32_t>(static_cast<std::size_t>(rows.tokens)),
                  .positions = std::vector<std::int32_t>(static_cast<std::size_t>(rows.tokens)),
                  .slots = std::vector<std::int64_t>(static_cast<std::size_t>(rows.tokens), -1)};
  std::int64_t row = 0;
  std::int64_t key_row = 0;
  const auto add = [&](const SequenceTokens& sequence, std::vector<SequenceRows>& sequences) {
    const std::int64_t length = sequence.context + std::ssize(sequence.tokens);
    sequences.push_back({.row = row,
                         .query = std::ssize(sequence.tokens),
                         .context = sequence.context,
                         .length = length,
                         .key_row = key_row,
                         .blocks = sequence.blocks});
    key_row += length;
    for (std::size_t i = 0; i < sequence.tokens.size(); ++i, ++row) {
      const std::int64_t position = sequence.context + static_cast<std::int64_t>(i);
      const auto at = static_cast<std::size_t>(row);
      result.token_ids[at] = sequence.tokens[i];
      result.positions[at] = static_cast<std::int32_t>(position);
      result.slots[at] =
          sequence.blocks[static_cast<std::size_t>(position / block_size)] * block_size +
          position % block_size;
    }
    if (sequence.produces_token) result.sampled.push_back(row - 1);
  };
  for (const SequenceTokens* chunk : part.prefill) add(*chunk, result.prefill);
  row = std::max(row, rows.prefill);
  for (const SequenceTokens* decode : part.decodes) add(*decode, result.decodes);
  result.sampled.resize(static_cast<std::size_t>(rows.seqs));
  result.num_tokens = row;
  return result;
}

PartRows rows_of_rank(const PartRows& step, const Plan& plan, int rank, int cp) {
  const PromptRows prompts = prompt_rows(plan, rank);
  const std::int64_t decodes = step.rows.tokens - step.rows.prefill;
  PartRows part = step;
  part.rows.prefill = prompts.room;
  part.rows.tokens = prompts.room + decodes;
  const auto num_rows = static_cast<std::size_t>(part.rows.tokens);
  part.of_step.assign(num_rows, 0);
  part.slots.assign(num_rows, -1);
  for (const AxisRange& range : prompts.ranges) {
    for (std::int64_t i = 0; i < range.count; ++i) {
      const auto at = static_cast<std::size_t>(range.local + i);
      part.of_step[at] = range.global + i;
      part.slots[at] = step.slots[static_cast<std::size_t>(range.global + i)];
    }
  }
  for (std::int64_t i = 0; i < decodes; ++i) {
    const auto at = static_cast<std::size_t>(prompts.room + i);
    const auto row = static_cast<std::size_t>(step.rows.prefill + i);
    part.of_step[at] = step.rows.prefill + i;
    if (step.positions[row] % cp == rank % cp) part.slots[at] = step.slots[row];
  }
  part.token_ids.clear();
  part.positions.clear();
  for (const std::int64_t row : part.of_step) {
    part.token_ids.push_back(step.token_ids[static_cast<std::size_t>(row)]);
    part.positions.push_back(step.positions[static_cast<std::size_t>(row)]);
  }
  for (std::int64_t& row : part.sampled) {
    const auto found = std::ranges::find(part.of_step, row);
    row = found == part.of_step.end() ? 0 : found - part.of_step.begin();
  }
  part.prefill.clear();
  for (const SequenceRows& sequence : step.prefill) {
    add_stretches(sequence, prompts.ranges, part.prefill);
  }
  for (SequenceRows& sequence : part.decodes) sequence.row += prompts.room - step.rows.prefill;
  return part;
}

bool is_on_part(const Plan& plan, const Op& op) {
  for (const auto* views : {&op.reads, &op.writes}) {
    for (const TensorId id : *views) {
      const Tensor& tensor = tensor_of(plan, id);
      if (tensor.role == TensorRole::kKvCache || has_part_of_tokens(plan, tensor)) return true;
    }
  }
  return false;
}

Values packed(const KvLayer& kv) {
  Values all = kv.keys;
  all.insert(all.end(), kv.values.begin(), kv.values.end());
  all.insert(all.end(), kv.has.begin(), kv.has.end());
  return all;
}

KvLayer joined(const std::vector<const KvLayer*>& shards) {
  KvLayer all = *shards.front();
  for (std::size_t slot = 0; slot < all.has.size(); ++slot) {
    for (const KvLayer* shard : shards) {
      if (shard->has[slot] == 0) continue;
      const auto copy = [&](Values& to, const Values& from) {
        const auto width = static_cast<std::ptrdiff_t>(to.size() / all.has.size());
        const auto at = static_cast<std::ptrdiff_t>(slot) * width;
        std::copy_n(from.begin() + at, width, to.begin() + at);
      };
      copy(all.keys, shard->keys);
      copy(all.values, shard->values);
      all.has[slot] = 1;
    }
  }
  return all;
}

std::vector<Values> latents_of(const KvLayer& all, std::int64_t block_size,
                               const std::vector<SequenceRows>& prefill,
                               const std::vector<const Tensor*>& outputs) {
  const std::int64_t latent = outputs.at(0)->axes.back().size;
  const std::int64_t rope = outputs.at(1)->axes.back().size;
  std::vector<Values> results(2);
  for (const SequenceRows& sequence : prefill) {
    const KvGatherResult found = cached_latents(all, block_size, sequence, latent, rope);
    results[0].insert(results[0].end(), found.latents.begin(), found.latents.end());
    results[1].insert(results[1].end(), found.rotated.begin(), found.rotated.end());
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    results[i].resize(static_cast<std::size_t>(num_elements(*outputs[i])));
  }
  return results;
}

namespace {

// Each rank's stretch of the columns of all ranks' rows: by rank, and by the rank they are from.
std::vector<std::vector<Values>> dealt_columns(const std::vector<Values>& inputs,
                                               std::int64_t width) {
  const std::int64_t share = width / std::ssize(inputs);
  std::vector<std::vector<Values>> outputs(inputs.size());
  for (std::size_t to = 0; to < inputs.size(); ++to) {
    for (const Values& input : inputs) {
      outputs[to].push_back(columns_of(input, width, static_cast<std::int64_t>(to) * share, share));
    }
  }
  return outputs;
}

// [num_rows, width], in which the rows of `parts` stand where of_step says.
Values rows_of_step(const std::vector<Values>& parts, const std::vector<const PartRows*>& rows,
                    std::int64_t num_rows, std::int64_t width) {
  Values whole(static_cast<std::size_t>(num_rows * width));
  for (std::size_t at = 0; at < parts.size(); ++at) {
    for (std::int64_t row = 0; row * width < std::ssize(parts[at]); ++row) {
      if (rows[at]->slots[static_cast<std::size_t>(row)] < 0) continue;  // it pads the part
      std::copy_n(parts[at].begin() + row * width, width,
                  whole.begin() + rows[at]->of_step[static_cast<std::size_t>(row)] * width);
    }
  }
  return whole;
}

bool joins_heads(const Tensor& output) { return output.axes.front().name == "parts"; }

}  // namespace

bool moves_context(const Plan& plan, const Op& op) {
  const Tensor& input = tensor_of(plan, op.reads.front());
  const Tensor& output = tensor_of(plan, op.writes.front());
  if (std::get<CommOp>(op.body).kind != CollectiveKind::kAllToAll) return false;
  return joins_heads(output) ||
         (has_part_of_tokens(plan, input) && !has_part_of_tokens(plan, output));
}

std::vector<Values> exchanged(const Plan& plan, const Op& op, std::size_t i,
                              const std::vector<Values>& inputs,
                              const std::vector<const PartRows*>& rows) {
  const Tensor& output = tensor_of(plan, op.writes[i]);
  const std::int64_t stride = tensor_of(plan, op.reads[i]).axes.back().size;
  std::vector<Values> outputs;
  outputs.reserve(inputs.size());
  for (const std::vector<Values>& parts : dealt_columns(inputs, stride)) {
    if (!joins_heads(output)) {
      outputs.push_back(
          rows_of_step(parts, rows, output.axes.front().size, output.axes.back().size));
      continue;
    }
    Values& joined_parts = outputs.emplace_back();
    for (const Values& part : parts) {
      joined_parts.insert(joined_parts.end(), part.begin(), part.end());
    }
  }
  return outputs;
}

}  // namespace orrery::reference
