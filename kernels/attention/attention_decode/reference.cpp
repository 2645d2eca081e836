#include "kernels/attention/attention_decode/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/attention/attention_prefill/reference.h"
#include "kernels/binding/kernel_call.h"

namespace orrery::reference {
namespace {

// One query head over the rows that start at `rows` in the cache.
void attend(std::span<const double> q, std::span<const std::size_t> rows,
            const AttentionDecodeInputs& inputs, std::span<double> out, double& lse) {
  std::vector<double> weights;
  for (const std::size_t row : rows) {
    const auto key = inputs.keys.subspan(row, q.size());
    weights.push_back(inputs.scale * std::inner_product(q.begin(), q.end(), key.begin(), 0.0));
  }
  const double largest = *std::ranges::max_element(weights);
  for (double& weight : weights) weight = std::exp(weight - largest);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  lse = largest + std::log(sum);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t dim = 0; dim < out.size(); ++dim) {
      out[dim] += weights[i] / sum * inputs.value_scale * inputs.values[rows[i] + dim];
    }
  }
}

}  // namespace

AttentionDecodeOutputs attention_decode(const AttentionDecodeShape& shape,
                                        const AttentionDecodeInputs& inputs) {
  const auto head_dim = static_cast<std::size_t>(shape.head_dim);
  const std::size_t q_heads = static_cast<std::size_t>(shape.seqs) * shape.heads;
  AttentionDecodeOutputs result{
      .out = std::vector<double>(q_heads * head_dim),
      .lse = std::vector<double>(q_heads, -std::numeric_limits<double>::infinity())};
  for (std::int64_t seq = 0; seq < shape.seqs; ++seq) {
    const std::int64_t context = inputs.context_lens[seq];
    for (std::int64_t head = 0; context > 0 && head < shape.heads; ++head) {
      const std::int64_t kv_head = head / (shape.heads / shape.kv_heads);
      std::vector<std::size_t> rows;
      for (std::int64_t key = std::max<std::int64_t>(0, context - shape.window); key < context;
           ++key) {
        const std::int64_t block =
            inputs.block_table[seq * inputs.blocks_per_sequence + key / inputs.block_size];
        const std::int64_t token = block * inputs.block_size + key % inputs.block_size;
        rows.push_back(static_cast<std::size_t>(token * shape.kv_heads + kv_head) * head_dim);
      }
      const std::size_t at = static_cast<std::size_t>(seq * shape.heads + head);
      attend(inputs.q.subspan(at * head_dim, head_dim), rows, inputs,
             std::span(result.out).subspan(at * head_dim, head_dim), result.lse[at]);
    }
  }
  return result;
}

Results attention_decode_reference(const KernelCall& call) {
  return attend(call, call.part.decodes, call.part.rows.prefill);
}

}  // namespace orrery::reference
