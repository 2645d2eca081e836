#include "kernels/execute/reference/context_part.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/attention/kv_gather/reference.h"
#include "kernels/execute/context_share.h"
#include "kernels/execute/rank_program.h"

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

// The first sampled rows are those of prompts, whichever rank has them; then come the rank's own
// decodes.
void keep_own_decodes(PartRows& part, const DealtDecodes& dealt, std::int64_t prompt_rows) {
  const auto all = std::ssize(part.decodes);
  const auto first = std::min<std::ptrdiff_t>(dealt.first, all);
  const auto last = std::min<std::ptrdiff_t>(dealt.first + dealt.count, all);
  const auto decodes =
      std::ranges::find_if(part.sampled, [&](std::int64_t row) { return row >= prompt_rows; });
  part.sampled.erase(decodes + last, part.sampled.end());
  part.sampled.erase(decodes, decodes + first);
  part.decodes.erase(part.decodes.begin() + last, part.decodes.end());
  part.decodes.erase(part.decodes.begin(), part.decodes.begin() + first);
  for (SequenceRows& sequence : part.decodes) sequence.row -= dealt.first;
  part.rows.decodes = dealt.room;
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
  const DealtDecodes dealt = dealt_decodes(plan, rank);
  const std::int64_t decodes = dealt.room > 0 ? dealt.room : step.rows.tokens - step.rows.prefill;
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
    const auto row = static_cast<std::size_t>(step.rows.prefill + dealt.first + i);
    if (dealt.room > 0 && i >= dealt.count) break;  // the others pad
    part.of_step[at] = static_cast<std::int64_t>(row);
    // Keys and values of decodes that are dealt out are those of gathered_decodes().
    if (dealt.room == 0 && step.positions[row] % cp == rank % cp) part.slots[at] = step.slots[row];
  }
  part.token_ids.clear();
  part.positions.clear();
  for (const std::int64_t row : part.of_step) {
    part.token_ids.push_back(step.token_ids[static_cast<std::size_t>(row)]);
    part.positions.push_back(step.positions[static_cast<std::size_t>(row)]);
  }
  if (dealt.room > 0) {
    keep_own_decodes(part, dealt, step.rows.prefill);
    part.rows.seqs = step_rows(plan, rank, 0).seqs;
    part.sampled.resize(static_cast<std::size_t>(part.rows.seqs));
  }
  part.num_tokens = prompts.room + std::ssize(part.decodes);
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

PartRows gathered_decodes(const PartRows& step, int rank, int cp) {
  PartRows part = step;
  const auto first = static_cast<std::ptrdiff_t>(step.rows.prefill);
  part.prefill.clear();
  part.token_ids.erase(part.token_ids.begin(), part.token_ids.begin() + first);
  part.positions.erase(part.positions.begin(), part.positions.begin() + first);
  part.slots.erase(part.slots.begin(), part.slots.begin() + first);
  for (std::size_t i = 0; i < part.slots.size(); ++i) {
    if (part.positions[i] % cp != rank % cp) part.slots[i] = -1;
  }
  for (SequenceRows& sequence : part.decodes) sequence.row -= step.rows.prefill;
  part.rows.prefill = 0;
  part.rows.tokens -= step.rows.prefill;
  part.num_tokens -= step.rows.prefill;
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

// Each rank's stretch of the columns, `share` of `width`, of all ranks' rows: by rank, and by the
// rank they are from. With a share of all columns, its stretch of the rows.
std::vector<std::vector<Values>> dealt(const std::vector<Values>& inputs, std::int64_t width,
                                       std::int64_t share) {
  std::vector<std::vector<Values>> outputs(inputs.size());
  for (std::size_t to = 0; to < inputs.size(); ++to) {
    for (const Values& input : inputs) {
      const auto size = std::ssize(input) / std::ssize(inputs);
      const auto begin = input.begin() + static_cast<std::ptrdiff_t>(to) * size;
      outputs[to].push_back(
          share == width ? Values(begin, begin + size)
                         : columns_of(input, width, static_cast<std::int64_t>(to) * share, share));
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

bool gathers_decodes(const Plan& plan, const Op& op) {
  return tensor_of(plan, op.writes.front()).axes.front().name == axis::kDecodes;
}

Values own_decodes(const Tensor& gathered, std::int64_t cp, const Values& own,
                   const TensorView& view, std::int64_t width) {
  const std::int64_t rows = gathered.axes.front().size / cp;
  const Values decodes(own.end() - rows * width, own.end());
  return view.is_whole() ? decodes
                         : columns_of(decodes, width, view.first_column, view.num_columns);
}

std::vector<Values> exchanged(const Plan& plan, const Op& op, std::size_t i,
                              const std::vector<Values>& inputs,
                              const std::vector<const PartRows*>& rows) {
  const Tensor& output = tensor_of(plan, op.writes[i]);
  const std::int64_t stride = tensor_of(plan, op.reads[i]).axes.back().size;
  std::vector<Values> outputs;
  outputs.reserve(inputs.size());
  for (const std::vector<Values>& parts : dealt(inputs, stride, output.axes.back().size)) {
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
